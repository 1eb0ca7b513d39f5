/* Replicas behind one dispatcher as structures in arrays; replica.py and pool.py hold the same rules.
 *
 * Samples, replicas, prompts (groups) and pauses are numbers from 0. Times in seconds, KV cache in tokens.
 */
#ifndef RLSIM_POOL_H
#define RLSIM_POOL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "containers.h"
#include "iteration_times.h"
#include "memory.h"

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#define NOT_BEGUN (-1.0)

static inline double later(double a_s, double b_s) { return a_s > b_s ? a_s : b_s; }

/* Sequences that a replica has room for at first: most never run as many as they have slots. */
#define FIRST_ROOM 32
/* Places in a replica's arrays over the sequences that it has room for: the more, the more seldom are running ones moved
 * together and evicted ones dropped from the heap. */
#define PLACES 2

/* EngineCounters of costs/interface.py. */
typedef struct {
    int64_t *iterations_at;
    double *context_at;
    int64_t prefill_iterations, prefill_tokens, prefill_squares, preemptions;
    double prefill_s;
} Counters;

/* What the caller knows of all samples, and what it wants to know: when each finished and where. completions: how often
 * samples finish, those that come back again and again. */
typedef struct {
    int64_t samples, groups, completions;
    const int32_t *prompt_tokens, *response_tokens, *iterations, *group;
    double *finish_s;
    int32_t *replica;
} Samples;

/* A sample with what its replica keeps about it, in one cache line: at a million samples each visit misses it.
 *
 * history: context of its own before this response. done of its total decode iterations; resumed: has emitted its first
 * token. While it decodes, heap_key is its key in the heap (else NONE), context_at_zero its context extrapolated to
 * decode iteration 0 of the replica, and last_iteration the decode iteration of the replica with which it completes.
 * Before that, response holds until it is admitted, arrival_s while it waits, while it is loading loaded_s, when it is
 * loaded, and in prefill prefill_left the tokens
 * that are left to prefill and prefill_end its context after them. place: among the running ones of its replica.
 * finish_s, replica: when and where it finished. */
typedef struct {
    double tokens_per_iteration;
    union {
        double arrival_s, loaded_s, context_at_zero, finish_s;
    };
    Link queue;
    int32_t place, group, prompt, history, total, heap_key;
    uint32_t done : 30, resumed : 1, loading : 1;
    union {
        int32_t response, prefill_left;
    };
    union {
        int32_t prefill_end, last_iteration, replica;
    };
} Sequence;

/* A decoding sequence in the heap of its replica, by (last iteration, key): order has the one in its upper half, the other
 * in its lower one. */
typedef struct {
    int64_t order;
    int32_t sequence;
} Completion;

static inline int64_t last_iteration_of(const Completion *entry) { return entry->order >> 32; }

/* Running samples in the order of their admission; those that left leave NONE. end: places that were ever taken since
 * they were last moved together. A list would meet two other samples whenever one leaves. */
typedef struct {
    int32_t *samples, end, length;
} Running;

/* What a pause does to requests: nothing; they prefill what they have again; start from their prompts; or, those that
 * are cancelled, leave. */
typedef enum { KEEP, RECOMPUTE, RESTART, CANCEL } Action;

/* Stops every replica for duration_s once its iteration in progress at time_s has ended. */
typedef struct {
    double time_s, duration_s;
    Action action;
} Pause;

/* Response tokens that a replica has emitted, and what of them was lost: emitted again, or cancelled in flight. */
typedef struct {
    double generated_tokens, regenerated_tokens, discarded_tokens;
} Emitted;

/* Contexts of samples, the oldest first, the tokens of all of them, and when all loads are sent; PrefixCache in
 * prefixes.py has the rules. */
typedef struct {
    List order;
    int64_t tokens, capacity_tokens;
    double free_s;
} Contexts;

/* Tokens that each sample has in one of the contexts of a kind, and where it stands there. */
typedef struct {
    Links links;
    int64_t *tokens;
} Shelf;

/* A replica's prefix cache; below: of the tier. reused, loaded: tokens found here and there. link_free_s: when all loads
 * are here. */
typedef struct {
    Contexts here, *below;
    int64_t reused, loaded;
    double link_free_s;
} Kept;

/* KvTier of costs/interface.py; capacity_tokens below 0: there is none. */
typedef struct {
    int64_t capacity_tokens;
    double token_s, latency_s;
    int64_t through, shared, prefetch;
    double store_token_s;
} Tier;

/* PrefillService of costs/interface.py; engines 0: there are none. */
typedef struct {
    const IterationTimes *timing;
    int64_t engines;
    double token_s, kv_token_s, latency_s;
} Prefill;

/* Seconds in which a replica had nothing to do while samples of it were with environments, or with the judge alone. */
typedef struct {
    double environment_s, judge_s, since_s;
    int64_t away, judged;
    bool idle;
} Absence;

/* In the order of how often it is asked for, whole cache lines. heap_stale: entries of the heap whose sequences were
 * evicted. waiting, running, prefilling, loading: in the order of submission, admission, admission, admission. The first `prefilled` of those
 * in prefill finish it with the iteration in progress. end_s: end of the segment in progress, or NOT_BEGUN. room: sequences
 * that its arrays hold, running ones, heap and residents; it grows with what runs. */
typedef struct {
    _Alignas(64) int32_t number;
    int32_t outstanding, prefilled, next_pause, heap_length, heap_stale, heap_keys;
    int32_t room;
    List waiting, prefilling;
    Running running;
    double now_s, end_s, context_at_zero, tokens_per_iteration, held, peak_kv_tokens;
    int64_t iteration, segment_iterations, decoded, waiting_prompts;
    Completion *heap;
    Residents residents;
    Emitted emitted;
    List loading;
    Kept kept;
    Absence absence;
} Replica;

typedef enum { STATIC, ROUND_ROBIN, LEAST_LOADED, SHARED_QUEUE } Dispatch;
/* Of pool.py. */
#define IMBALANCE 64
#define IMBALANCE_FACTOR 1.5
typedef enum { STICKY, RETURN_LEAST_LOADED, CACHE_AWARE } Routing;

/* queue_links: in the sequences, which are at hand where these are asked for; of lists in which a sample is before it
 * decodes (the shared queue, waiting, loading or prefilling on a replica). kept, stored: of contexts in prefix caches and
 * in tiers, of which `tiers` has one for each replica, or the first for all. away_s: where a tier prefetches, since when
 * samples are with their environments and, once they are back, for how long they were. counts: load is brought up to date. done: samples in the order of completion.
 * due: replicas by their next event, load: by unfinished samples. stale: replicas whose next event must be asked for
 * anew. seen: last recomputation that met a prompt. cancelled: samples to be aborted. turn: replica that is offered the
 * head of the shared queue first. Where others prefill: free_s, when each of their engines is free; arriving, targets:
 * samples in prefill by when they come to the replica that decodes them; contexts, prompts: what is in their prefix
 * caches of samples, and whether of groups. */
typedef struct {
    Block memory;
    const IterationTimes *timing;
    Counters *counters;
    Samples samples;
    bool sharing;
    Dispatch dispatch;
    Routing routing;
    bool counts;
    Sequence *sequences;
    Links queue_links;
    Shelf kept, stored;
    Tier tier;
    Contexts *tiers;
    double *away_s;
    List shared;
    int32_t num_replicas, slots, turn;
    char *replicas;
    size_t replica_bytes;
    Pause *pauses;
    int32_t num_pauses;
    int32_t *done, num_done;
    int64_t *seen, recomputations, submitted;
    Ordered due, load;
    int32_t *stale, num_stale;
    bool *is_stale, *cancelled;
    int64_t infeasible;
    Prefill prefill;
    Ordered free_s, arriving;
    int32_t *targets, *contexts;
    bool *prompts;
} Pool;

static inline Replica *replica_at(const Pool *pool, int64_t number) {
    return (Replica *)(void *)(pool->replicas + (size_t)number * pool->replica_bytes);
}

/* A sample finished at a time on a replica; whether the run stops there. */
typedef bool (*Finished)(void *owner, double time_s, int32_t sample, int32_t replica);

bool completion_is_valid(const Pool *pool, const Replica *replica, const Completion *entry);
void completion_push(const Pool *pool, Replica *replica, Completion entry);
Completion completion_pop(Replica *replica);

void replica_take_room(Replica *replica, Block *memory, int32_t room);
void running_append(Pool *pool, Replica *replica, int32_t sample);

void replica_submit(Pool *pool, Replica *replica, double time_s, int32_t sample);
bool replica_has_room(const Pool *pool, const Replica *replica, int32_t sample);
void replica_end_early(const Pool *pool, Replica *replica, double time_s);
double replica_next_event(Pool *pool, Replica *replica);
int64_t replica_in_progress(const Pool *pool, const Replica *replica, int64_t *samples, double *tokens);
void replica_finish(Pool *pool, Replica *replica);
void replica_advance(Pool *pool, Replica *replica, double time_s);

void replica_leave(Pool *pool, Replica *replica, double time_s, int32_t sample, int64_t tokens);
void kept_clear(Pool *pool, Replica *replica);
int64_t kept_found(const Pool *pool, int32_t i, int64_t resident);
int64_t kept_found_below(const Pool *pool, int32_t i, int64_t resident);
void kept_comes_back(Pool *pool, double time_s, int32_t i);
double kept_loaded_s(const Pool *pool, const Replica *replica, int32_t i, int64_t tokens);
void kept_take(Pool *pool, Replica *replica, int32_t i, int64_t resident, int64_t loaded);
void kept_leave(Pool *pool, Replica *replica, int32_t i);
void kept_reclaim(Pool *pool, Replica *replica, double room);
void absence_turn_ended(Absence *absence, double time_s, bool idle);
void absence_environment(Absence *absence, double time_s, int64_t change);
void absence_judge(Absence *absence, double time_s, int64_t change);
void absence_ends(Absence *absence, double time_s);

void prefill_begin(Pool *pool, double time_s, int32_t number, int32_t sample);
void prefill_forget(Pool *pool);

void pool_return(Pool *pool, double time_s, int32_t number, int32_t sample);
void pool_submit(Pool *pool, double time_s, int32_t first, int32_t count);
bool pool_run(Pool *pool, double time_s, Finished finished, void *owner);
void pool_drain(Pool *pool);
void pool_pause(Pool *pool, double time_s, double duration_s, Action action);
void pool_cancel(Pool *pool, int32_t first, int32_t count);

EXPORT void pool_free(Pool *pool);
EXPORT Pool *pool_new(const IterationTimes *timing, Counters *counters, const Samples *samples, int64_t num_replicas,
                      int64_t dispatch, int64_t sharing, int64_t max_pauses, int64_t routing, const Tier *tier,
                      const Prefill *prefill);

#endif
