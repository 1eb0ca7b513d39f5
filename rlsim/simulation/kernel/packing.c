/* Samples that go to bins and to ranks.
 *
 * Best-fit decreasing: each sample into the fullest bin that has room for it, of several the one opened first.
 *
 * Free tokens are whole numbers: a set of those that some bin has, as bits under bits, and for each a heap of its bins.
 */
#include "pool.h"

#include <stdlib.h>

enum { NO_BIN = -1, LEVELS = 5 }; /* 64^5 tokens */

/* bits[0]: which numbers are in the set; bits[n + 1]: which words of bits[n] are not empty. */
typedef struct {
    uint64_t *bits[LEVELS];
    int64_t words[LEVELS];
} Set;

/* Pairing heaps of bins by number: a bin's first child and its next sibling. */
typedef struct {
    int32_t *child, *next;
} Heaps;

static void set_add(Set *set, int64_t i) {
    for (int level = 0; level < LEVELS; level++, i >>= 6)
        set->bits[level][i >> 6] |= UINT64_C(1) << (i & 63);
}

static void set_remove(Set *set, int64_t i) {
    for (int level = 0; level < LEVELS; level++, i >>= 6)
        if (set->bits[level][i >> 6] &= ~(UINT64_C(1) << (i & 63)))
            return;
}

/* The least member from i on; -1 where there is none. */
static int64_t set_from(const Set *set, int64_t i) {
    for (int level = 0; level < LEVELS && i >> 6 < set->words[level]; i = (i >> 6) + 1, level++) {
        const uint64_t found = set->bits[level][i >> 6] & (~UINT64_C(0) << (i & 63));
        if (!found)
            continue;
        i = (i & ~INT64_C(63)) + __builtin_ctzll(found);
        while (level--)
            i = i * 64 + __builtin_ctzll(set->bits[level][i]);
        return i;
    }
    return -1;
}

static int32_t joined(Heaps heaps, int32_t a, int32_t b) {
    if (a == NO_BIN || b == NO_BIN)
        return a == NO_BIN ? b : a;
    const int32_t first = a < b ? a : b, second = a < b ? b : a;
    heaps.next[second] = heaps.child[first];
    heaps.child[first] = second;
    return first;
}

/* What is left of a heap without its first bin: children joined in pairs, and those from the last on. */
static int32_t without_first(Heaps heaps, int32_t first) {
    int32_t pairs = NO_BIN, left = NO_BIN;
    for (int32_t one = heaps.child[first]; one != NO_BIN;) {
        const int32_t other = heaps.next[one], after = other == NO_BIN ? NO_BIN : heaps.next[other];
        const int32_t pair = joined(heaps, one, other);
        heaps.next[pair] = pairs;
        pairs = pair;
        one = after;
    }
    while (pairs != NO_BIN) {
        const int32_t after = heaps.next[pairs];
        left = joined(heaps, left, pairs);
        pairs = after;
    }
    return left;
}

/* The bin of each sample, longest first; each of the first `alone` has one of its own. 0 where memory is short. */
EXPORT int32_t packing_bins(int64_t samples, const int64_t *tokens, int64_t capacity, int64_t alone, int64_t *bin) {
    Set set;
    int64_t words = 0, size = capacity + 1;
    for (int level = 0; level < LEVELS; level++)
        words += set.words[level] = size = (size + 63) / 64;
    uint64_t *bits = calloc((size_t)words, sizeof *bits);
    int32_t *heap = malloc((size_t)(capacity + 1 + 2 * samples) * sizeof *heap);
    const bool enough = bits && heap;
    if (enough) {
        const Heaps heaps = {heap + capacity + 1, heap + capacity + 1 + samples};
        for (int level = 0; level < LEVELS; level++)
            set.bits[level] = level ? set.bits[level - 1] + set.words[level - 1] : bits;
        int64_t opened = 0;
        for (int64_t i = 0; i < samples; i++) {
            int64_t at = i < alone ? -1 : set_from(&set, tokens[i]), room = capacity;
            if (at >= 0) {
                const int32_t first = heap[at];
                bin[i] = first;
                room = at;
                heap[at] = without_first(heaps, first);
                if (heap[at] == NO_BIN)
                    set_remove(&set, at);
            } else {
                bin[i] = opened++;
            }
            room -= tokens[i];
            if (room > 0) {
                const int32_t one = (int32_t)bin[i];
                heaps.child[one] = heaps.next[one] = NO_BIN;
                const bool known = set.bits[0][room >> 6] >> (room & 63) & 1;
                heap[room] = joined(heaps, known ? heap[room] : NO_BIN, one);
                set_add(&set, room);
            }
        }
    }
    free(bits);
    free(heap);
    return enough;
}

/* What a rank has been dealt. */
typedef struct {
    double cost;
    int64_t rank, samples;
} Share;

static bool has_less(const Share *a, const Share *b) {
    return a->cost < b->cost || (a->cost == b->cost && a->rank < b->rank);
}

/* The rank of each sample, dearest first: of those that have room for one the one that was dealt least, of several the
 * first. 0 where memory is short. */
EXPORT int32_t packing_deal(int64_t samples, const double *cost, int64_t ranks, int64_t room, int64_t *rank) {
    Share *heap = malloc((size_t)ranks * sizeof *heap);
    if (!heap)
        return 0;
    for (int64_t one = 0; one < ranks; one++)
        heap[one] = (Share){0.0, one, 0};
    for (int64_t i = 0; i < samples; i++) {
        Share share = heap[0];
        rank[i] = share.rank;
        share.cost += cost[i];
        if (++share.samples == room)
            share = heap[--ranks];
        int64_t at = 0;
        for (int64_t child = 1; child < ranks; child = 2 * at + 1) {
            if (child + 1 < ranks && has_less(&heap[child + 1], &heap[child]))
                child++;
            if (!has_less(&heap[child], &share))
                break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = share;
    }
    free(heap);
    return 1;
}
