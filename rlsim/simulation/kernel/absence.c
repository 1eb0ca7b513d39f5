/* What a replica keeps of samples that are away with their environments; PrefixCache and Absence
 * in requests.py hold the same rules. */
#include "pool.h"

static void keep(Pool *pool, Replica *replica, int32_t i, int64_t tokens) {
    list_append(&replica->kept.contexts, pool->kept_links, i);
    pool->kept_tokens[i] = tokens;
    replica->kept.tokens += tokens;
}

static void forget(Pool *pool, Replica *replica, int32_t i) {
    list_remove(&replica->kept.contexts, pool->kept_links, i);
    pool->kept_tokens[i] = 0;
}

/* Tokens of its context that a sample finds, beyond its prompt where that is resident anyway. */
int64_t kept_found(const Pool *pool, const Sequence *sequence, int32_t i, bool prompt_resident) {
    const int64_t tokens = pool->kept_tokens[i];
    if (!prompt_resident)
        return tokens;
    return tokens > sequence->prompt ? tokens - sequence->prompt : 0;
}

/* A sample runs again on what it found. */
void kept_take(Pool *pool, Replica *replica, int32_t i, bool prompt_resident) {
    if (!pool->kept_tokens[i])
        return;
    replica->kept.reused += kept_found(pool, &pool->sequences[i], i, prompt_resident);
    replica->kept.tokens -= pool->kept_tokens[i];
    forget(pool, replica, i);
}

/* Give up the oldest blocks until at most `room` tokens are left. */
void kept_reclaim(Pool *pool, Replica *replica, double room) {
    if ((double)replica->kept.tokens <= room)
        return;
    int64_t excess = (int64_t)ceil((double)replica->kept.tokens - room);
    while (excess > 0 && replica->kept.contexts.length) {
        const int32_t i = replica->kept.contexts.head;
        const int64_t given = excess < pool->kept_tokens[i] ? excess : pool->kept_tokens[i];
        excess -= given;
        replica->kept.tokens -= given;
        if (given == pool->kept_tokens[i])
            forget(pool, replica, i);
        else
            pool->kept_tokens[i] -= given;
    }
}

void kept_clear(Pool *pool, Replica *replica) {
    while (replica->kept.contexts.length)
        forget(pool, replica, replica->kept.contexts.head);
    replica->kept.tokens = 0;
}

/* A sample that has just finished will come back; `tokens` of its context stay in the prefix cache. */
void replica_leave(Pool *pool, Replica *replica, double time_s, int32_t sample, int64_t tokens) {
    absence_environment(&replica->absence, time_s, 1);
    if (tokens && pool->sharing) {
        keep(pool, replica, sample, tokens);
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
