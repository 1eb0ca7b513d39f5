/* Engines that prefill alone and send what they computed to those that decode; the rules of prefills.py. */
#include "pool.h"

#include <string.h>

/* When a request that comes now is prefilled and its KV cache where it decodes. */
static double arrives_s(Pool *pool, double time_s, int32_t i) {
    const Prefill *prefill = &pool->prefill;
    const IterationTimes *timing = prefill->timing;
    const Sequence *sequence = &pool->sequences[i];
    const int64_t context = (int64_t)sequence->prompt + sequence->history;
    int64_t found = pool->contexts[i];
    if (!found && pool->prompts[sequence->group])
        found = sequence->prompt;
    const int64_t need = context - found > 1 ? context - found : 1;
    if (pool->sharing) {
        pool->contexts[i] = (int32_t)context;
        pool->prompts[sequence->group] = true;
    }
    pool->counters->prefill_tokens += need;
    pool->counters->prefill_squares += (2 * context - need) * need;
    const int32_t number = pool->free_s.first[1];
    const double free_s = ordered_key(&pool->free_s, number);
    const bool alone = free_s <= time_s && need < timing->max_batched_tokens;
    double seconds = alone ? prefill_s(timing, 0, need) : (double)need * prefill->token_s;
    seconds += behind_s(timing, context) - behind_s(timing, context - need);
    const double ready_s = (free_s > time_s ? free_s : time_s) + (seconds > 0.0 ? seconds : 0.0);
    ordered_set(&pool->free_s, number, ready_s);
    const int64_t moved = sequence->history ? need : context;
    return ready_s + (prefill->latency_s + (double)moved * prefill->kv_token_s);
}

/* A sample that a replica will decode is prefilled. */
void prefill_begin(Pool *pool, double time_s, int32_t number, int32_t sample) {
    pool->targets[sample] = number;
    ordered_set(&pool->arriving, sample, arrives_s(pool, time_s, sample));
}

/* New weights: what is cached was computed with the old ones. */
void prefill_forget(Pool *pool) {
    memset(pool->contexts, 0, (size_t)pool->samples.samples * sizeof *pool->contexts);
    memset(pool->prompts, 0, (size_t)pool->samples.groups * sizeof *pool->prompts);
}
