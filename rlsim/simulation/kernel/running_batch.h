/* What a replica holds: RunningBatch in requests.py has the rules. */
#ifndef RLSIM_RUNNING_BATCH_H
#define RLSIM_RUNNING_BATCH_H

#include "pool.h"

/* Tokens to prefill beyond the prompt: all emitted ones, the last of which was never in the KV cache. */
static inline int64_t generated(const Sequence *sequence) {
    if (!sequence->resumed)
        return 0;
    const double tokens = (double)sequence->done * sequence->tokens_per_iteration;
    const int64_t whole = (int64_t)tokens;
    return whole + ((double)whole < tokens) + 1;
}

/* Response tokens so far, `further` decode iterations beyond those in done. */
static inline double emitted_tokens(const Sequence *sequence, int64_t further) {
    return (double)(sequence->done + further) * sequence->tokens_per_iteration + (double)sequence->resumed;
}

/* Tokens beyond its prompt that a sequence holds while it is not decoding. */
static inline double own_tokens(const Sequence *sequence) {
    return (double)sequence->history + (double)(sequence->done + sequence->resumed) * sequence->tokens_per_iteration;
}

static inline double context_sum(const Replica *replica, int64_t iteration) {
    return replica->context_at_zero + (double)iteration * replica->tokens_per_iteration;
}

static inline double kv_tokens(const Pool *pool, const Replica *replica) {
    const int64_t decoding = replica->running.length * pool->timing->tokens_per_sequence;
    return context_sum(replica, replica->iteration) + replica->held + (double)decoding;
}

void leave_decoding(Replica *replica, Sequence *sequence);
void remove_running(Pool *pool, Replica *replica, int32_t i);
double evict(Pool *pool, Replica *replica, double kv);
void cancel(Pool *pool, Replica *replica);
void forget(Pool *pool, Replica *replica);
void prefill_again(Pool *pool, Replica *replica);

#endif
