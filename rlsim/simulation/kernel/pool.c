/* Replicas behind one dispatcher, driven event by event; the rules of pool.py. */
#include "pool.h"

#include <stddef.h>
#include <stdlib.h>

static void mark_stale(Pool *pool, int32_t number) {
    if (!pool->is_stale[number]) {
        pool->is_stale[number] = true;
        pool->stale[pool->num_stale++] = number;
    }
}

/* Ask stale replicas, in the order in which they became so, for their next events. */
static void refresh(Pool *pool) {
    for (int32_t k = 0; k < pool->num_stale; k++) {
        const int32_t number = pool->stale[k];
        pool->is_stale[number] = false;
        ordered_set(&pool->due, number, replica_next_event(pool, replica_at(pool, number)));
    }
    pool->num_stale = 0;
}

static void change_load(Pool *pool, int32_t number, int32_t change) {
    if (pool->counts)
        ordered_set(&pool->load, number, ordered_key(&pool->load, number) + change);
}

static void submit_to(Pool *pool, int32_t number, double time_s, int32_t sample) {
    if (pool->prefill.engines) {
        prefill_begin(pool, time_s, number, sample);
        return;
    }
    replica_submit(pool, replica_at(pool, number), time_s, sample);
    mark_stale(pool, number);
}

/* Hand the head of the shared queue to a replica that has room, or is idle and must take or refuse it. */
static bool offer(Pool *pool, int32_t number, double time_s) {
    const Replica *replica = replica_at(pool, number);
    const int32_t sample = pool->shared.head;
    if (sample == NONE || !(replica_has_room(pool, replica, sample) || !replica->outstanding))
        return false;
    list_remove(&pool->shared, pool->queue_links, sample);
    change_load(pool, number, 1);
    submit_to(pool, number, time_s, sample);
    return true;
}

/* Queue samples and let every replica take one in turn, round after round, while any has room. The turn goes on where
 * it ended, or else the first replicas would take all that come in few at a time. */
static void share(Pool *pool, double time_s, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        list_append(&pool->shared, pool->queue_links, first + i);
    const int32_t turn = pool->turn;
    for (bool taken = true; taken && pool->shared.length;) {
        taken = false;
        for (int32_t i = 0; i < pool->num_replicas && pool->shared.length; i++) {
            const int32_t number = (turn + i) % pool->num_replicas;
            if (offer(pool, number, time_s)) {
                taken = true;
                pool->turn = (number + 1) % pool->num_replicas;
            }
        }
    }
}

/* Whether loads differ so much that a cache-aware router leaves prefixes (pool.py). */
static bool imbalanced(const Pool *pool) {
    const double least = ordered_key(&pool->load, pool->load.first[1]);
    double most = least;
    for (int32_t number = 0; number < pool->num_replicas; number++)
        most = most > ordered_key(&pool->load, number) ? most : ordered_key(&pool->load, number);
    return most - least > IMBALANCE && most > IMBALANCE_FACTOR * least;
}

/* A sample comes back that left a replica. */
void pool_return(Pool *pool, double time_s, int32_t number, int32_t sample) {
    Replica *left = replica_at(pool, number);
    absence_environment(&left->absence, time_s, -1);
    kept_comes_back(pool, time_s, sample);
    if (pool->routing == RETURN_LEAST_LOADED || (pool->routing == CACHE_AWARE && imbalanced(pool))) {
        const int32_t target = pool->load.first[1];
        if (target != number)
            kept_leave(pool, left, sample);
        number = target;
    }
    change_load(pool, number, 1);
    submit_to(pool, number, time_s, sample);
}

/* Replica of the i-th of `count` samples that are submitted together, after those submitted before. */
static int32_t assign(Pool *pool, int32_t i, int32_t count) {
    if (pool->dispatch == LEAST_LOADED)
        return pool->load.first[1];
    if (pool->dispatch == ROUND_ROBIN)
        return (int32_t)((pool->submitted + i) % pool->num_replicas);
    const int32_t size = count / pool->num_replicas, larger = count % pool->num_replicas;
    const int32_t block = i < larger * (size + 1) ? i / (size + 1) : larger + (i - larger * (size + 1)) / size;
    return (int32_t)((pool->submitted + block) % pool->num_replicas);
}

/* A sample as it was drawn. */
static void begin_sequence(Pool *pool, int32_t i) {
    const Samples *samples = &pool->samples;
    const int32_t total = samples->iterations[i], response = samples->response_tokens[i];
    pool->sequences[i] = (Sequence){.group = samples->group[i], .prompt = samples->prompt_tokens[i],
                                    .response = response, .total = total, .heap_key = NONE,
                                    .tokens_per_iteration = total ? (double)(response - 1) / (double)total : 0.0};
}

/* Dispatch the samples first, first + 1, ... at a time. */
void pool_submit(Pool *pool, double time_s, int32_t first, int32_t count) {
    for (int32_t i = first; i < first + count; i++)
        begin_sequence(pool, i);
    if (pool->dispatch == SHARED_QUEUE) {
        share(pool, time_s, first, count);
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        const int32_t number = assign(pool, i, count);
        change_load(pool, number, 1);
        submit_to(pool, number, time_s, first + i);
    }
    pool->submitted += count;
}

/* Tell the owner of samples that completed since `before`; whether it stops the run. */
static bool tell(Pool *pool, int32_t before, Finished finished, void *owner) {
    bool stop = false;
    for (int32_t k = before; k < pool->num_done; k++) {
        const Sequence *sequence = &pool->sequences[pool->done[k]];
        stop |= finished(owner, sequence->finish_s, pool->done[k], sequence->replica);
    }
    return stop;
}

/* Those who are prefilled first, by a time, join the replicas that decode them, unless they were cancelled meanwhile;
 * whether any does. All of one time together: a replica begins an iteration with whoever is there. */
static bool arrive(Pool *pool, double time_s) {
    const double now_s = pool->prefill.engines ? ordered_key(&pool->arriving, pool->arriving.first[1]) : INFINITY;
    if (now_s > time_s || now_s == INFINITY)
        return false;
    for (int32_t i = pool->arriving.first[1]; ordered_key(&pool->arriving, i) == now_s; i = pool->arriving.first[1]) {
        const int32_t number = pool->targets[i];
        ordered_set(&pool->arriving, i, INFINITY);
        if (pool->cancelled[i]) {
            pool->cancelled[i] = false;
            change_load(pool, number, -1);
            continue;
        }
        replica_submit(pool, replica_at(pool, number), now_s, i);
        mark_stale(pool, number);
    }
    return true;
}

/* Run until a time and tell of every completion, in order of time; whether the owner stopped the run.
 *
 * What starts at time_s itself is left for later, so that samples submitted then still take part in it. */
bool pool_run(Pool *pool, double time_s, Finished finished, void *owner) {
    for (;;) {
        refresh(pool);
        const int32_t number = pool->due.first[1];
        const double at_s = ordered_key(&pool->due, number);
        if (arrive(pool, at_s < time_s ? at_s : time_s))
            continue;
        if (at_s > time_s || at_s == INFINITY)
            return false;
        Replica *replica = replica_at(pool, number);
        /* Replicas of a large pool are not in the cache: the next one comes while this one's event happens. */
        const int32_t second = ordered_second(&pool->due); /* none where no other replica has anything to do */
        const Replica *next = second < pool->num_replicas ? replica_at(pool, second) : replica;
        for (size_t byte = 0; byte < sizeof *next; byte += 64)
            __builtin_prefetch((const char *)next + byte, 1);
        const int32_t before = pool->num_done;
        replica_finish(pool, replica);
        for (size_t byte = 0; byte < 256; byte += 64)
            __builtin_prefetch((const char *)next->heap + byte, 1);
        const int32_t completed = pool->num_done - before;
        if (completed)
            change_load(pool, number, -completed);
        const bool stop = tell(pool, before, finished, owner);
        while (pool->shared.length && offer(pool, number, at_s))
            ;
        if (next->heap_length) /* the sample that it completes next */
            __builtin_prefetch(&pool->sequences[next->heap[0].sequence], 1);
        if (stop) {
            mark_stale(pool, number); /* the owner may submit at this very time, before the next segment starts */
            return true;
        }
        ordered_set(&pool->due, number, replica_next_event(pool, replica));
    }
}

/* Run every replica by itself to its last token, while nothing waits in a shared queue or is submitted. */
void pool_drain(Pool *pool) {
    for (int32_t number = 0; number < pool->num_replicas; number++)
        replica_advance(pool, replica_at(pool, number), INFINITY);
}

/* Stop every replica for duration_s once its iteration in progress has ended, and then do as the action says. */
void pool_pause(Pool *pool, double time_s, double duration_s, Action action) {
    pool->pauses[pool->num_pauses++] = (Pause){time_s, duration_s, action};
    if (pool->prefill.engines && (action == RECOMPUTE || action == RESTART))
        prefill_forget(pool);
    for (int32_t number = 0; number < pool->num_replicas; number++) {
        replica_end_early(pool, replica_at(pool, number), time_s);
        mark_stale(pool, number);
    }
}

/* Abort samples: those of the shared queue at once, others with the next pause that cancels. */
void pool_cancel(Pool *pool, int32_t first, int32_t count) {
    for (int32_t i = first; i < first + count; i++)
        pool->cancelled[i] = true;
    for (int32_t i = pool->shared.head, next; i != NONE; i = next) {
        next = link_of(pool->queue_links, i)->next;
        if (pool->cancelled[i]) {
            list_remove(&pool->shared, pool->queue_links, i);
            pool->cancelled[i] = false;
        }
    }
}

/* Tokens that the replicas have emitted. */
EXPORT void pool_emitted(const Pool *pool, double *generated_tokens, double *regenerated_tokens,
                         double *discarded_tokens) {
    *generated_tokens = *regenerated_tokens = *discarded_tokens = 0.0;
    for (int32_t number = 0; number < pool->num_replicas; number++) {
        const Emitted *emitted = &replica_at(pool, number)->emitted;
        *generated_tokens += emitted->generated_tokens;
        *regenerated_tokens += emitted->regenerated_tokens;
        *discarded_tokens += emitted->discarded_tokens;
    }
}

/* Unfinished samples and the response tokens that each has so far, at replicas, then of those in prefill; how many there
 * are. */
EXPORT int64_t pool_in_progress(const Pool *pool, int64_t *samples, double *tokens) {
    int64_t count = 0;
    for (int32_t number = 0; number < pool->num_replicas; number++)
        count += replica_in_progress(pool, replica_at(pool, number), samples + count, tokens + count);
    for (int32_t i = 0; pool->prefill.engines && i < pool->samples.samples; i++) {
        if (ordered_key(&pool->arriving, i) == INFINITY)
            continue;
        samples[count] = i;
        tokens[count++] = 0.0;
    }
    return count;
}

/* --- one rollout -------------------------------------------------------------------------------------------------- */

/* Tell the caller when and where samples finished: 0 of those that were never submitted. */
static void tell_all(const Pool *pool) {
    for (int64_t i = 0; i < pool->samples.samples; i++) {
        pool->samples.finish_s[i] = pool->sequences[i].finish_s;
        pool->samples.replica[i] = pool->sequences[i].replica;
    }
}

static bool nobody_waits(void *owner, double time_s, int32_t sample, int32_t replica) {
    (void)time_s, (void)sample, (void)replica;
    const Pool *pool = owner;
    return !pool->prefill.engines && !pool->shared.length;
}

/* Run all samples from time 0. Once nobody waits in a shared queue or is in prefill every replica runs on by itself. */
EXPORT void pool_run_all(Pool *pool) {
    pool_submit(pool, 0.0, 0, (int32_t)pool->samples.samples);
    if (pool->shared.length || pool->prefill.engines)
        pool_run(pool, INFINITY, nobody_waits, pool);
    pool_drain(pool);
    tell_all(pool);
}

EXPORT void pool_peaks(const Pool *pool, double *peak_kv_tokens) {
    for (int32_t number = 0; number < pool->num_replicas; number++)
        peak_kv_tokens[number] = replica_at(pool, number)->peak_kv_tokens;
}

/* A sample that exceeds the KV cache of a replica, or -1. */
EXPORT int64_t pool_infeasible(const Pool *pool) { return pool->infeasible; }

/* --- memory ------------------------------------------------------------------------------------------------------- */

EXPORT void pool_free(Pool *pool) {
    if (!pool)
        return;
    release(&pool->memory);
    free(pool);
}

static void ordered_new(Ordered *ordered, Block *memory, int32_t count, double key) {
    ordered->leaves = 1;
    while (ordered->leaves < (uint32_t)count)
        ordered->leaves *= 2;
    ordered->keys = part(memory, ordered->leaves * sizeof *ordered->keys);
    ordered->first = part(memory, 2 * (size_t)ordered->leaves * sizeof *ordered->first);
    if (!memory->start)
        return;
    for (uint32_t i = 0; i < ordered->leaves; i++) {
        const double own = i < (uint32_t)count ? key : INFINITY;
        memcpy(&ordered->keys[i], &own, sizeof own);
        ordered->first[ordered->leaves + i] = (int32_t)i;
    }
    for (uint32_t at = ordered->leaves - 1; at > 0; at--)
        ordered->first[at] = ordered->first[2 * at]; /* of equal keys */
}

static void shelf_new(Shelf *shelf, Block *memory, size_t samples) {
    *shelf = (Shelf){{part(memory, samples * sizeof(Link)), sizeof(Link)},
                     part(memory, samples * sizeof *shelf->tokens)};
}

/* An idle replica in a block of its own: an event meets another replica than the one before, and with it few pages. */
static void replica_new(const Pool *pool, Block *own, int32_t number) {
    Replica *replica = part(own, sizeof *replica);
    Replica idle = {.number = number, .waiting = EMPTY_LIST, .prefilling = EMPTY_LIST, .loading = EMPTY_LIST,
                    .end_s = NOT_BEGUN, .kept = {.here = {.order = EMPTY_LIST}}};
    replica_take_room(&idle, own, pool->slots < FIRST_ROOM ? pool->slots : FIRST_ROOM);
    if (own->start)
        *replica = idle;
}

/* Lay everything that grows with samples and replicas out in the pool's memory, or only count it where there is none
 * yet. */
static void lay_out(Pool *pool, int64_t max_pauses) {
    Block *memory = &pool->memory;
    const size_t samples = (size_t)pool->samples.samples, replicas = (size_t)pool->num_replicas;
    Block own = {NULL, 0, 0}; /* what each replica has, one behind the other */
    /* Counted with the first replica's number: all are of one size. */
    replica_new(pool, &own, 0);
    pool->replica_bytes = own.used;
    pool->replicas = part(memory, replicas * own.used);
    ordered_new(&pool->due, memory, pool->num_replicas, INFINITY);
    ordered_new(&pool->load, memory, pool->num_replicas, 0.0);
    pool->stale = part(memory, replicas * sizeof *pool->stale);
    pool->is_stale = part(memory, replicas * sizeof *pool->is_stale);
    pool->sequences = part(memory, samples * sizeof *pool->sequences);
    /* Not &pool->sequences->queue: while parts are only counted there are no sequences, and a member of nothing has no
     * address (C11 6.5.3.2). */
    char *sequences = (char *)pool->sequences;
    pool->queue_links = (Links){sequences ? sequences + offsetof(Sequence, queue) : NULL, sizeof *pool->sequences};
    shelf_new(&pool->kept, memory, samples);
    if (pool->tier.capacity_tokens >= 0)
        shelf_new(&pool->stored, memory, samples);
    pool->away_s = pool->tier.prefetch ? part(memory, samples * sizeof *pool->away_s) : NULL;
    pool->tiers = part(memory, replicas * sizeof *pool->tiers);
    pool->cancelled = part(memory, samples * sizeof *pool->cancelled);
    pool->done = part(memory, (size_t)pool->samples.completions * sizeof *pool->done);
    pool->seen = part(memory, (size_t)pool->samples.groups * sizeof *pool->seen);
    pool->pauses = part(memory, (size_t)(max_pauses + 1) * sizeof *pool->pauses);
    if (pool->prefill.engines) {
        ordered_new(&pool->free_s, memory, (int32_t)pool->prefill.engines, 0.0);
        ordered_new(&pool->arriving, memory, (int32_t)samples, INFINITY);
        pool->targets = part(memory, samples * sizeof *pool->targets);
        pool->contexts = part(memory, samples * sizeof *pool->contexts);
        pool->prompts = part(memory, (size_t)pool->samples.groups * sizeof *pool->prompts);
    }
    if (memory->start)
        return;
    own.used = 0; /* what one that runs all its slots takes in the end; no page of it exists before it is used */
    for (int32_t room = FIRST_ROOM; room < pool->slots;) {
        room = pool->slots < 2 * room ? pool->slots : 2 * room;
        replica_take_room(&(Replica){0}, &own, room);
    }
    memory->used += replicas * own.used;
}

/* Idle replicas and samples that nobody has submitted; NULL without memory. What the arguments point to stays the
 * caller's and must outlive the pool. max_pauses: pauses and recomputations that can ever be asked for. */
EXPORT Pool *pool_new(const IterationTimes *timing, Counters *counters, const Samples *samples, int64_t num_replicas,
                      int64_t dispatch, int64_t sharing, int64_t max_pauses, int64_t routing, const Tier *tier,
                      const Prefill *prefill) {
    Pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    *pool = (Pool){.timing = timing, .counters = counters, .samples = *samples, .sharing = sharing != 0,
                   .dispatch = (Dispatch)dispatch, .routing = (Routing)routing, .tier = *tier, .prefill = *prefill,
                   .counts = dispatch == LEAST_LOADED || routing != STICKY, .num_replicas = (int32_t)num_replicas, .shared = EMPTY_LIST,
                   .infeasible = NONE};
    pool->slots = (int32_t)(timing->max_sequences < samples->samples ? timing->max_sequences : samples->samples);
    lay_out(pool, max_pauses);
    if (!reserve(&pool->memory)) {
        free(pool);
        return NULL;
    }
    lay_out(pool, max_pauses);
    const int64_t capacity = tier->capacity_tokens * (tier->shared ? num_replicas : 1);
    for (int32_t number = 0; number < pool->num_replicas; number++) {
        Block own = {pool->replicas + (size_t)number * pool->replica_bytes, 0, pool->replica_bytes};
        replica_new(pool, &own, number);
        pool->tiers[number] = (Contexts){EMPTY_LIST, 0, capacity, 0.0};
        if (capacity >= 0)
            replica_at(pool, number)->kept.below = &pool->tiers[tier->shared ? 0 : number];
    }
    return pool;
}
