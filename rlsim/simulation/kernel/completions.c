/* The binary heap of a replica: its decoding sequences by the iteration with which they complete, ties by key.
 *
 * A sequence that is evicted forgets its key, which leaves a stale entry to be skipped at the top: cheaper than finding
 * it inside. */
#include "pool.h"

static bool completes_before(const Completion *a, const Completion *b) {
    return a->last_iteration < b->last_iteration || (a->last_iteration == b->last_iteration && a->key < b->key);
}

/* Most heaps hold no stale entry, and their sequences need not be looked at. */
bool completion_is_valid(const Pool *pool, const Replica *replica, const Completion *entry) {
    return !replica->heap_stale || pool->sequences[entry->sequence].heap_key == entry->key;
}

/* Put an entry where `at` is free, as far down as it belongs. */
static void sink(Replica *replica, int32_t at, Completion entry) {
    Completion *heap = replica->heap;
    for (int32_t child = 2 * at + 1; child < replica->heap_length; child = 2 * at + 1) {
        if (child + 1 < replica->heap_length && completes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!completes_before(&heap[child], &entry))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = entry;
}

/* Drop the entries of evicted sequences, which have forgotten their keys. */
static void compact(const Pool *pool, Replica *replica) {
    int32_t kept = 0;
    for (int32_t i = 0; i < replica->heap_length; i++)
        if (completion_is_valid(pool, replica, &replica->heap[i]))
            replica->heap[kept++] = replica->heap[i];
    replica->heap_length = kept;
    replica->heap_stale = 0;
    for (int32_t at = kept / 2 - 1; at >= 0; at--)
        sink(replica, at, replica->heap[at]);
}

void completion_push(const Pool *pool, Replica *replica, Completion entry) {
    if (replica->heap_length == PLACES * replica->room)
        compact(pool, replica);
    int32_t at = replica->heap_length++;
    while (at > 0 && completes_before(&entry, &replica->heap[(at - 1) / 2])) {
        replica->heap[at] = replica->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    replica->heap[at] = entry;
}

Completion completion_pop(Replica *replica) {
    const Completion first = replica->heap[0];
    replica->heap_length--;
    if (replica->heap_length)
        sink(replica, 0, replica->heap[replica->heap_length]);
    return first;
}
