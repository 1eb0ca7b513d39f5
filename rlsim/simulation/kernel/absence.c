/* What a replica keeps of samples that are away with their environments; PrefixCache in prefixes.py and Absence in
 * requests.py hold the same rules. */
#include "pool.h"

static void drop(Contexts *contexts, Shelf shelf, int32_t i) {
    if (!shelf.tokens[i])
        return;
    list_remove(&contexts->order, shelf.links, i);
    contexts->tokens -= shelf.tokens[i];
    shelf.tokens[i] = 0;
}

static void put(Contexts *contexts, Shelf shelf, int32_t i, int64_t tokens) {
    drop(contexts, shelf, i);
    list_append(&contexts->order, shelf.links, i);
    shelf.tokens[i] = tokens;
    contexts->tokens += tokens;
}

/* The oldest one gives up at most `excess` tokens, from its end; how many, and of which sample. */
static int64_t give_up(Contexts *contexts, Shelf shelf, int64_t excess, int32_t *i) {
    *i = contexts->order.head;
    const int64_t tokens = shelf.tokens[*i], given = excess < tokens ? excess : tokens;
    if (given == tokens) {
        drop(contexts, shelf, *i);
    } else {
        shelf.tokens[*i] -= given;
        contexts->tokens -= given;
    }
    return given;
}

/* Write so much of a context to the tier, the newest there. */
static void store(Pool *pool, Contexts *below, int32_t i, int64_t tokens) {
    int32_t oldest;
    put(below, pool->stored, i, tokens);
    while (below->tokens > below->capacity_tokens)
        give_up(below, pool->stored, below->tokens - below->capacity_tokens, &oldest);
}

/* Tokens of its context that a sample finds, beyond the `resident` first ones. */
int64_t kept_found(const Pool *pool, int32_t i, int64_t resident) {
    const int64_t tokens = pool->kept.tokens[i];
    return tokens > resident ? tokens - resident : 0;
}

/* Tokens of its context that only the tier has, beyond the `resident` first ones. */
int64_t kept_found_below(const Pool *pool, int32_t i, int64_t resident) {
    const int64_t cached = pool->kept.tokens[i], end = pool->stored.tokens[i] + (pool->tier.through ? 0 : cached);
    const int64_t start = cached > resident ? cached : resident;
    return end > start ? end - start : 0;
}

/* The environment of a sample has answered. */
void kept_comes_back(Pool *pool, double time_s, int32_t i) {
    if (pool->away_s)
        pool->away_s[i] = time_s - pool->away_s[i];
}

/* When the load of a sample that is admitted now was asked for: where it is prefetched, as long ago as its environment
 * took. */
static double asked_s(const Pool *pool, const Replica *replica, int32_t i) {
    return replica->now_s - (pool->away_s ? pool->away_s[i] : 0.0);
}

/* When the store has sent so many tokens of it. */
static double sent_s(const Pool *pool, const Replica *replica, int32_t i, int64_t tokens) {
    return later(replica->kept.below->free_s, asked_s(pool, replica, i)) + (double)tokens * pool->tier.store_token_s;
}

/* When so many tokens of it are here, behind the loads before. */
double kept_loaded_s(const Pool *pool, const Replica *replica, int32_t i, int64_t tokens) {
    const Tier *tier = &pool->tier;
    const double load_s = tier->latency_s + (double)tokens * tier->token_s;
    const double ready_s = later(replica->kept.link_free_s, asked_s(pool, replica, i)) + load_s;
    return tier->store_token_s > 0.0 ? later(ready_s, sent_s(pool, replica, i, tokens) + tier->latency_s) : ready_s;
}

/* A sample runs again on what it found and loads from now on. */
void kept_take(Pool *pool, Replica *replica, int32_t i, int64_t resident, int64_t loaded) {
    replica->kept.reused += kept_found(pool, i, resident);
    if (loaded) {
        replica->kept.loaded += loaded;
        replica->kept.link_free_s = kept_loaded_s(pool, replica, i, loaded);
        if (pool->tier.store_token_s > 0.0)
            replica->kept.below->free_s = sent_s(pool, replica, i, loaded);
    }
    if (pool->away_s)
        pool->away_s[i] = 0.0; /* what is evicted and admitted again was with no environment */
    drop(&replica->kept.here, pool->kept, i);
    if (replica->kept.below && !pool->tier.through)
        drop(replica->kept.below, pool->stored, i);
}

/* Give up the oldest blocks until at most `room` tokens are left. */
void kept_reclaim(Pool *pool, Replica *replica, double room) {
    Contexts *here = &replica->kept.here;
    if ((double)here->tokens <= room)
        return;
    int32_t i;
    for (int64_t excess = (int64_t)ceil((double)here->tokens - room), given; excess > 0 && here->order.length; excess -= given) {
        given = give_up(here, pool->kept, excess, &i);
        if (replica->kept.below && !pool->tier.through)
            store(pool, replica->kept.below, i, pool->stored.tokens[i] + given);
    }
}

/* A sample goes on elsewhere: only a whole copy in a store that all share is of use there. */
void kept_leave(Pool *pool, Replica *replica, int32_t i) {
    drop(&replica->kept.here, pool->kept, i);
    if (replica->kept.below && !(pool->tier.through && pool->tier.shared))
        drop(replica->kept.below, pool->stored, i);
}

static void clear(Contexts *contexts, Shelf shelf) {
    while (contexts->order.length)
        drop(contexts, shelf, contexts->order.head);
}

void kept_clear(Pool *pool, Replica *replica) {
    clear(&replica->kept.here, pool->kept);
    if (replica->kept.below)
        clear(replica->kept.below, pool->stored);
}

/* A sample that has just finished will come back; `tokens` of its context stay in the prefix cache. */
void replica_leave(Pool *pool, Replica *replica, double time_s, int32_t sample, int64_t tokens) {
    absence_environment(&replica->absence, time_s, 1);
    if (pool->away_s)
        pool->away_s[sample] = time_s;
    if (!tokens && replica->kept.below)
        drop(replica->kept.below, pool->stored, sample);
    if (tokens && pool->sharing) {
        put(&replica->kept.here, pool->kept, sample, tokens);
        if (replica->kept.below && pool->tier.through)
            store(pool, replica->kept.below, sample, tokens);
        const double kv = replica->context_at_zero + (double)replica->iteration * replica->tokens_per_iteration
                          + replica->held + (double)(replica->running.length * pool->timing->tokens_per_sequence);
        kept_reclaim(pool, replica, pool->timing->kv_capacity_tokens - kv);
    }
}

/* --- absence ------------------------------------------------------------------------------------------------------ */

static void book(Absence *absence, double time_s) {
    if (!absence->idle)
        return;
    if (absence->away)
        absence->environment_s += time_s - absence->since_s;
    else if (absence->judged)
        absence->judge_s += time_s - absence->since_s;
    absence->since_s = time_s;
}

/* A sample has its last token; idle: no other is on the replica. */
void absence_turn_ended(Absence *absence, double time_s, bool idle) {
    if (idle && !absence->idle) {
        absence->idle = true;
        absence->since_s = time_s;
    }
}

/* So many samples more are with their environments. */
void absence_environment(Absence *absence, double time_s, int64_t change) {
    book(absence, time_s);
    absence->away += change;
}

/* So many samples more are with the judge. */
void absence_judge(Absence *absence, double time_s, int64_t change) {
    book(absence, time_s);
    absence->judged += change;
}

/* The replica has something to do. */
void absence_ends(Absence *absence, double time_s) {
    book(absence, time_s);
    absence->idle = false;
}
