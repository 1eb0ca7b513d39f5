/* Lists, an ordered set of replicas, a table of shared prompts, all by index into arrays of fixed size. */
#ifndef RLSIM_CONTAINERS_H
#define RLSIM_CONTAINERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { NONE = -1 };

/* A doubly linked list of samples; its links lie `stride` bytes apart, one for each sample. */
typedef struct {
    int32_t previous, next;
} Link;

typedef struct {
    char *first;
    size_t stride;
} Links;

static inline Link *link_of(Links links, int32_t i) { return (Link *)(void *)(links.first + (size_t)i * links.stride); }

typedef struct {
    int32_t head, tail, length;
} List;

static const List EMPTY_LIST = {NONE, NONE, 0};

static inline void list_append(List *list, Links links, int32_t i) {
    *link_of(links, i) = (Link){list->tail, NONE};
    if (list->tail == NONE)
        list->head = i;
    else
        link_of(links, list->tail)->next = i;
    list->tail = i;
    list->length++;
}

static inline void list_prepend(List *list, Links links, int32_t i) {
    *link_of(links, i) = (Link){NONE, list->head};
    if (list->head == NONE)
        list->tail = i;
    else
        link_of(links, list->head)->previous = i;
    list->head = i;
    list->length++;
}

static inline void list_remove(List *list, Links links, int32_t i) {
    const Link link = *link_of(links, i);
    if (link.previous == NONE)
        list->head = link.next;
    else
        link_of(links, link.previous)->next = link.next;
    if (link.next == NONE)
        list->tail = link.previous;
    else
        link_of(links, link.next)->previous = link.previous;
    list->length--;
}

/* All replicas by (key, number) as a tournament: first[leaves + i] is replica i, and every number before that the first of
 * the two below it, first[1] of all. Keys are not negative, so that their bits are ordered as they are; to choose by bits
 * takes no branch, which nobody could foresee. leaves: a power of two; where no replica stands the key is infinite. */
typedef struct {
    int64_t *keys;
    int32_t *first;
    uint32_t leaves;
} Ordered;

static inline double ordered_key(const Ordered *ordered, int32_t number) {
    double key;
    memcpy(&key, &ordered->keys[number], sizeof key);
    return key;
}

/* Give a replica a new key. */
static inline void ordered_set(Ordered *ordered, int32_t number, double key) {
    int64_t *keys = ordered->keys, bits;
    int32_t *first = ordered->first, best = number;
    memcpy(&bits, &key, sizeof key);
    if (keys[number] == bits)
        return;
    keys[number] = bits;
    for (uint32_t at = ordered->leaves + (uint32_t)number; at > 1; at >>= 1) {
        const int32_t other = first[at ^ 1];
        const int64_t others = keys[other];
        const bool behind = others < bits + (at & 1); /* of two equal ones the left one is first */
        best = behind ? other : best;
        bits = behind ? others : bits;
        first[at >> 1] = best;
    }
}

/* The replica that comes next unless the first one has another event before it. */
static inline int32_t ordered_second(const Ordered *ordered) {
    int32_t best = ordered->first[1];
    int64_t bits = INT64_MAX;
    for (uint32_t at = ordered->leaves + (uint32_t)best; at > 1; at >>= 1) {
        const int32_t other = ordered->first[at ^ 1];
        const bool before = ordered->keys[other] < bits;
        best = before ? other : best;
        bits = before ? ordered->keys[other] : bits;
    }
    return best;
}

/* A prompt, and how many of its samples are resident; 0 marks a free place. */
typedef struct {
    int32_t key, count;
} Shared;

/* A hash table of them for a replica, with open addressing and linear probes.
 *
 * mask: the number of places less 1, which is a power of two and at least twice the keys that can be in it. */
typedef struct {
    Shared *places;
    uint64_t mask;
} Residents;

static inline uint64_t residents_home(const Residents *residents, int32_t key) {
    return ((uint64_t)key * UINT64_C(0x9E3779B97F4A7C15) >> 20) & residents->mask; /* Fibonacci hashing */
}

/* The place of a key, or the free one where it belongs. */
static inline uint64_t residents_find(const Residents *residents, int32_t key) {
    uint64_t at = residents_home(residents, key);
    while (residents->places[at].count && residents->places[at].key != key)
        at = (at + 1) & residents->mask;
    return at;
}

static inline int32_t residents_count(const Residents *residents, int32_t key) {
    return residents->places[residents_find(residents, key)].count;
}

static inline void residents_add(Residents *residents, int32_t key) {
    Shared *place = &residents->places[residents_find(residents, key)];
    place->key = key;
    place->count++;
}

/* One sample of a key less; how many are left. With the last one, later keys close the gap in their row of probes. */
static inline int32_t residents_remove(Residents *residents, int32_t key) {
    Shared *places = residents->places;
    uint64_t gap = residents_find(residents, key);
    const int32_t left = --places[gap].count;
    if (left)
        return left;
    for (uint64_t at = (gap + 1) & residents->mask; places[at].count; at = (at + 1) & residents->mask) {
        const uint64_t home = residents_home(residents, places[at].key);
        if (((at - home) & residents->mask) >= ((at - gap) & residents->mask)) {
            places[gap] = places[at];
            places[at].count = 0;
            gap = at;
        }
    }
    return 0;
}

/* The smallest of a heap and of a further number, which takes its place in the heap (Python's heappushpop). */
static inline double heap_pushpop(double *heap, int64_t count, double further) {
    if (!count || further <= heap[0])
        return further;
    const double first = heap[0];
    int64_t at = 0;
    for (int64_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= further)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = further;
    return first;
}

/* How many are somewhere after every change, or NULL. */
typedef struct {
    double *times_s, *counts;
    int64_t length;
} Presence;

/* So many more from now on. */
static inline void change(Presence *presence, double time_s, double by) {
    if (!presence->times_s)
        return;
    presence->times_s[presence->length] = time_s;
    presence->counts[presence->length] = (presence->length ? presence->counts[presence->length - 1] : 0.0) + by;
    presence->length++;
}

#endif
