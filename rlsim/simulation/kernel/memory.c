/* Zeroed memory in large pages where the system has them. */
#if defined(__linux__)
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#endif
#include "memory.h"

#include <stdlib.h>

/* Memory for the parts counted so far, which are then handed out anew; whether there is so much. */
bool reserve(Block *block) {
    block->bytes = block->used;
    block->used = 0;
#if defined(__linux__)
    void *found = mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block->start = found == MAP_FAILED ? NULL : found;
    if (block->start)
        madvise(block->start, block->bytes, MADV_HUGEPAGE);
#else
    block->start = calloc(block->bytes, 1);
#endif
    return block->start != NULL;
}

void release(Block *block) {
#if defined(__linux__)
    munmap(block->start, block->bytes);
#else
    free(block->start);
#endif
}
