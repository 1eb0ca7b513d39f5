/* One block of zeroed memory for all arrays of a pool.
 *
 * Samples are visited in the order of their completions, which is none of any array: with pages of 4 KiB half of the
 * time at a million samples goes into finding pages. Large pages are asked for where the system has them. */
#ifndef RLSIM_MEMORY_H
#define RLSIM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

enum { CACHE_LINE = 64 };

/* start: NULL until it is reserved, while `used` bytes are counted. */
typedef struct {
    char *start;
    size_t used, bytes;
} Block;

/* The next part of a block, on a cache line of its own; NULL while parts are only counted. */
static inline void *part(Block *block, size_t bytes) {
    void *at = block->start ? block->start + block->used : NULL;
    block->used += (bytes + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
    return at;
}

bool reserve(Block *block);
void release(Block *block);

#endif
