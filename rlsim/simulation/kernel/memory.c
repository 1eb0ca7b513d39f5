/* Zeroed memory in large pages where the system has them. */
#if defined(__linux__) && !defined(RLSIM_PLAIN_MEMORY)
#define LARGE_PAGES
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#endif
#include "memory.h"

#include <stdlib.h>
#include <string.h>

/* RLSIM_PLAIN_MEMORY: as on systems without large pages, for sanitizers, which see no end of mapped memory. */

#if !defined(LARGE_PAGES)
/* Not calloc, which aligns to 16 bytes: a Replica is _Alignas(64). The size is a multiple of that, as C11 7.22.3.1 wants
 * it, because part() rounds every part up. */
static void *aligned(size_t bytes) {
#if defined(_WIN32)
    return _aligned_malloc(bytes, CACHE_LINE); /* its C library has no aligned_alloc */
#else
    return aligned_alloc(CACHE_LINE, bytes);
#endif
}
#endif

/* Memory for the parts counted so far, which are then handed out anew; whether there is so much. */
bool reserve(Block *block) {
    block->bytes = block->used;
    block->used = 0;
#if defined(LARGE_PAGES)
    void *found = mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block->start = found == MAP_FAILED ? NULL : found;
    if (block->start)
        madvise(block->start, block->bytes, MADV_HUGEPAGE);
#else
    block->start = aligned(block->bytes);
    if (block->start)
        memset(block->start, 0, block->bytes);
#endif
    return block->start != NULL;
}

void release(Block *block) {
#if defined(LARGE_PAGES)
    munmap(block->start, block->bytes);
#elif defined(_WIN32)
    _aligned_free(block->start);
#else
    free(block->start);
#endif
}
