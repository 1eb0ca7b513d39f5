/* One replica, advanced from one change of its batch to the next. The rules are those of replica.py, function for
 * function and sum for sum: what is computed in another order has other bits. */
#include "running_batch.h"

/* Tokens of a prefill that fit an iteration: any share of it when chunked, else all or nothing. */
static int64_t chunk_of(const Pool *pool, int64_t need, int64_t taken, int64_t budget) {
    if (pool->timing->chunked_prefill)
        return need < budget - taken ? need : budget - taken;
    return !taken || taken + need <= budget ? need : 0;
}

/* Seconds of a chunk of so many tokens, the next of a sequence in prefill, beyond those of prefill_s; counts its pairs of
 * query and key twice, which are whole numbers and so the same in any order. */
static double behind_own_s(const Pool *pool, const Sequence *sequence, int64_t chunk) {
    const int64_t start = sequence->prefill_end - sequence->prefill_left;
    pool->counters->prefill_squares += (2 * start + chunk) * chunk;
    return behind_s(pool->timing, start + chunk) - behind_s(pool->timing, start);
}

/* KV tokens that admission of a sequence adds. */
static double kv_of(const Pool *pool, const Replica *replica, const Sequence *sequence) {
    const double own = own_tokens(sequence) + (double)pool->timing->tokens_per_sequence;
    if (pool->sharing && residents_count(&replica->residents, sequence->group))
        return own;
    return own + (double)sequence->prompt;
}

static void complete(Pool *pool, Replica *replica, int32_t i, double end_s) {
    remove_running(pool, replica, i);
    replica->outstanding--;
    pool->sequences[i].finish_s = end_s;
    pool->sequences[i].replica = replica->number;
    pool->done[pool->num_done++] = i;
}

/* --- the end of a segment ----------------------------------------------------------------------------------------- */

/* Sequences whose prefill the iteration finished emit their first token and decode from the next one on. */
static void start_decoding(Pool *pool, Replica *replica, double end_s) {
    const int64_t iteration = replica->iteration;
    for (; replica->prefilled; replica->prefilled--) {
        const int32_t i = replica->prefilling.head;
        Sequence *sequence = &pool->sequences[i];
        list_remove(&replica->prefilling, pool->queue_links, i);
        replica->held -= own_tokens(sequence);
        replica->emitted.generated_tokens += sequence->resumed ? sequence->tokens_per_iteration : 1.0;
        sequence->done += sequence->resumed;
        sequence->resumed = true;
        if (sequence->done >= sequence->total) {
            complete(pool, replica, i, end_s);
            continue;
        }
        /* Extrapolated back to iteration 0, so that contexts of all sequences grow in one sum with the iteration. */
        const double grown = (double)(sequence->done - iteration) * sequence->tokens_per_iteration;
        sequence->context_at_zero = (double)(sequence->prompt + sequence->history) + grown;
        replica->context_at_zero += sequence->context_at_zero;
        replica->tokens_per_iteration += sequence->tokens_per_iteration;
        replica->held -= (double)sequence->prompt;
        sequence->last_iteration = (int32_t)iteration + sequence->total - (int32_t)sequence->done;
        const Completion entry = {(int64_t)sequence->last_iteration << 32 | ++replica->heap_keys, i};
        completion_push(pool, replica, entry); /* before the sequence has the key: a full heap drops what has none */
        sequence->heap_key = replica->heap_keys;
    }
}

/* Count the decode iterations of a segment and the KV cache that it needed at its end. */
static void book_segment(Pool *pool, Replica *replica, int64_t count) {
    const int64_t decoding = replica->running.length - replica->loading.length;
    const double growth = replica->tokens_per_iteration;
    const double last = context_sum(replica, replica->iteration + count - 1);
    const double kv = last + replica->held + (double)(replica->running.length * pool->timing->tokens_per_sequence);
    if (kv > replica->peak_kv_tokens)
        replica->peak_kv_tokens = kv;
    pool->counters->iterations_at[decoding] += count;
    pool->counters->context_at[decoding] +=
        (double)count * (last - 0.5 * (double)(count - 1) * growth) / (double)decoding;
    if (replica->kept.here.tokens)
        kept_reclaim(pool, replica, pool->timing->kv_capacity_tokens - kv);
}

/* The segment in progress has ended. */
void replica_finish(Pool *pool, Replica *replica) {
    const double end_s = replica->end_s;
    if (replica->segment_iterations)
        book_segment(pool, replica, replica->segment_iterations);
    replica->emitted.generated_tokens += (double)replica->decoded * replica->tokens_per_iteration;
    replica->iteration += replica->decoded;
    replica->now_s = end_s;
    replica->end_s = NOT_BEGUN;
    replica->segment_iterations = 0;
    while (replica->heap_length && last_iteration_of(&replica->heap[0]) <= replica->iteration) {
        const Completion entry = completion_pop(replica);
        if (!completion_is_valid(pool, replica, &entry)) {
            replica->heap_stale--;
            continue;
        }
        leave_decoding(replica, &pool->sequences[entry.sequence]);
        complete(pool, replica, entry.sequence, end_s);
    }
    start_decoding(pool, replica, end_s);
}

/* --- the start of a segment --------------------------------------------------------------------------------------- */

/* Start a pause that is due, if any; an idle replica first serves those due before its next arrival. */
static bool begin_pause(Pool *pool, Replica *replica) {
    const Pause *pause = &pool->pauses[replica->next_pause];
    double due_s = replica->now_s;
    if (!replica->running.length) {
        if (!replica->waiting.length)
            return false;
        due_s = later(due_s, pool->sequences[replica->waiting.head].arrival_s);
    }
    if (pause->time_s > due_s)
        return false;
    replica->next_pause++;
    if (pause->action == CANCEL) {
        cancel(pool, replica);
    } else if (pause->action != KEEP) {
        kept_clear(pool, replica);
        if (pause->action == RESTART)
            forget(pool, replica);
        prefill_again(pool, replica);
    }
    const bool waits = pause->action == KEEP || replica->running.length; /* for having been aborted, or not at all */
    replica->end_s = later(replica->now_s, pause->time_s) + (waits ? pause->duration_s : 0.0);
    return true;
}

/* Tokens of `need` that the tier below has, where it brings them sooner than they are prefilled alone. */
static int64_t worth_loading(const Pool *pool, const Replica *replica, int32_t i, int64_t resident, int64_t need,
                             int64_t end) {
    const IterationTimes *timing = pool->timing;
    const int64_t tokens = kept_found_below(pool, i, resident);
    if (!tokens)
        return 0;
    const int64_t start = end - need, rest = need - tokens;
    double again_s = prefill_s(timing, 0, need) - prefill_s(timing, 0, rest) + behind_s(timing, start + tokens);
    again_s -= behind_s(timing, start);
    return kept_loaded_s(pool, replica, i, tokens) - replica->now_s < again_s ? tokens : 0;
}

/* Whether so many tokens were fetched while the environment worked. */
static bool is_here(const Pool *pool, const Replica *replica, int32_t i, int64_t tokens) {
    return pool->away_s && kept_loaded_s(pool, replica, i, tokens) <= replica->now_s;
}

/* Who is loaded prefills what is left. */
static void end_loads(const Pool *pool, Replica *replica) {
    while (replica->loading.length && pool->sequences[replica->loading.head].loaded_s <= replica->now_s) {
        const int32_t i = replica->loading.head;
        list_remove(&replica->loading, pool->queue_links, i);
        pool->sequences[i].loading = false;
        list_append(&replica->prefilling, pool->queue_links, i);
    }
}

/* Admit waiting sequences in order while budget, slots and KV cache last; KV tokens in use, prefill tokens, and what
 * they take behind their contexts. */
static double admit(Pool *pool, Replica *replica, int64_t *tokens, int64_t budget, double kv, double *behind) {
    const IterationTimes *timing = pool->timing;
    Kept *kept = &replica->kept;
    while (replica->waiting.length && replica->running.length < timing->max_sequences) {
        const int32_t i = replica->waiting.head;
        Sequence *sequence = &pool->sequences[i];
        if (sequence->arrival_s > replica->now_s)
            break;
        const bool shared = pool->sharing && residents_count(&replica->residents, sequence->group);
        const int64_t resident = shared ? sequence->prompt : 0;
        int64_t need = shared ? 0 : sequence->prompt;
        const double held = (double)need + own_tokens(sequence);
        const int64_t own = sequence->history + generated(sequence);
        need += own;
        if (kept->here.tokens)
            need -= kept_found(pool, i, resident);
        const int32_t end = sequence->prompt + (int32_t)own;
        if (pool->prefill.engines && !sequence->resumed)
            need = 1; /* what it begins with was prefilled elsewhere */
        need = need ? need : 1;
        const bool below = kept->below && kept->below->tokens;
        const int64_t loaded = below ? worth_loading(pool, replica, i, resident, need, end) : 0;
        const bool apart = loaded && timing->chunked_prefill && !is_here(pool, replica, i, loaded);
        const int64_t chunk = apart ? 0 : chunk_of(pool, need - loaded, *tokens, budget);
        /* The first that does not fit blocks all behind it, as in vLLM: nobody overtakes. */
        if (!(chunk || apart) || kv + held + (double)timing->tokens_per_sequence > timing->kv_capacity_tokens)
            break;
        kv += held + (double)timing->tokens_per_sequence;
        *tokens += chunk;
        list_remove(&replica->waiting, pool->queue_links, i);
        replica->held += held;
        replica->waiting_prompts -= sequence->prompt + sequence->history;
        if (kept->here.tokens || below) {
            kept_take(pool, replica, i, resident, loaded);
            kept_reclaim(pool, replica, timing->kv_capacity_tokens - kv);
        }
        running_append(pool, replica, i);
        if (pool->sharing)
            residents_add(&replica->residents, sequence->group);
        sequence->prefill_left = (int32_t)(need - loaded);
        sequence->prefill_end = end;
        if (apart) {
            sequence->loaded_s = kept->link_free_s;
            sequence->loading = true;
            list_append(&replica->loading, pool->queue_links, i);
            continue;
        }
        *behind += behind_own_s(pool, sequence, chunk);
        sequence->prefill_left -= (int32_t)chunk;
        list_append(&replica->prefilling, pool->queue_links, i);
        replica->prefilled += !sequence->prefill_left;
    }
    return kv;
}

static void begin_segment(Pool *pool, Replica *replica, double kv);

/* Start one iteration that prefills within the token budget. */
static void begin_prefill(Pool *pool, Replica *replica, double kv) {
    const IterationTimes *timing = pool->timing;
    const int64_t waiting = replica->prefilling.length + replica->loading.length;
    const int64_t decoding = timing->chunked_prefill ? replica->running.length - waiting : 0;
    const int64_t budget = timing->max_batched_tokens - decoding * timing->tokens_per_sequence;
    int64_t tokens = 0;
    double behind = 0.0;
    for (int32_t i = replica->prefilling.head; i != NONE; i = link_of(pool->queue_links, i)->next) {
        Sequence *sequence = &pool->sequences[i];
        const int64_t chunk = chunk_of(pool, sequence->prefill_left, tokens, budget);
        if (!chunk)
            break;
        behind += behind_own_s(pool, sequence, chunk);
        sequence->prefill_left -= (int32_t)chunk;
        tokens += chunk;
        replica->prefilled += !sequence->prefill_left;
    }
    /* New ones are admitted only behind prompts that are through: admission is in the order of submission. */
    if (replica->prefilled == replica->prefilling.length)
        kv = admit(pool, replica, &tokens, budget, kv, &behind);
    if (kv > replica->peak_kv_tokens)
        replica->peak_kv_tokens = kv;
    if (!tokens) { /* whoever was admitted loads */
        begin_segment(pool, replica, kv);
        return;
    }
    /* `behind` is negative for the first tokens of long prompts; no prefill gives time back. */
    double added_s = later(0.0, prefill_s(timing, decoding, tokens) + behind);
    if (!timing->chunked_prefill)
        added_s = later(added_s, replica->kept.link_free_s - replica->now_s);
    double seconds = added_s;
    if (decoding) {
        const double context = context_sum(replica, replica->iteration) / (double)decoding;
        seconds += decode_s(timing, decoding, context);
        pool->counters->iterations_at[decoding]++;
        pool->counters->context_at[decoding] += context;
        replica->decoded = 1;
    }
    pool->counters->prefill_iterations++;
    pool->counters->prefill_tokens += tokens;
    pool->counters->prefill_s += added_s;
    replica->end_s = replica->now_s + seconds;
}

/* Find how many iterations pass before the membership changes, and when the last of them ends. */
static void begin_segment(Pool *pool, Replica *replica, double kv) {
    const IterationTimes *timing = pool->timing;
    const int64_t decoding = replica->running.length - replica->loading.length;
    const double growth = replica->tokens_per_iteration;
    const double loaded_s = replica->loading.length ? pool->sequences[replica->loading.head].loaded_s : INFINITY;
    if (!decoding || loaded_s <= replica->now_s) {
        replica->end_s = loaded_s;
        return;
    }
    /* Entries of evicted sequences stay until they come up: to take one out of a heap's middle costs a search. */
    while (!completion_is_valid(pool, replica, &replica->heap[0])) {
        completion_pop(replica);
        replica->heap_stale--;
    }
    __builtin_prefetch(&pool->sequences[replica->heap[0].sequence], 1); /* most likely met when the segment ends */
    int64_t count = last_iteration_of(&replica->heap[0]) - replica->iteration;
    const double spare = timing->kv_capacity_tokens - kv;
    if ((double)count * growth > spare) {
        /* One iteration more than fits: it is the one that finds the cache full and evicts. */
        const int64_t fitting = (int64_t)(spare / growth) + 1;
        count = count < fitting ? count : fitting;
    }
    const double context = context_sum(replica, replica->iteration) / (double)decoding;
    replica->segment_iterations = replica->decoded = count;
    replica->end_s = replica->now_s + segment_s(timing, decoding, context, growth / (double)decoding, count);
    if (replica->next_pause < pool->num_pauses)
        replica_end_early(pool, replica, pool->pauses[replica->next_pause].time_s);
    if (replica->loading.length)
        replica_end_early(pool, replica, loaded_s);
    if (replica->waiting.length && replica->running.length < timing->max_sequences) {
        const double arrival_s = pool->sequences[replica->waiting.head].arrival_s;
        if (arrival_s > replica->now_s)
            replica_end_early(pool, replica, arrival_s);
    }
}

/* Settle what the next segment is and when it ends; an idle replica begins none. */
static void begin(Pool *pool, Replica *replica) {
    const IterationTimes *timing = pool->timing;
    replica->segment_iterations = replica->decoded = 0;
    if (replica->next_pause < pool->num_pauses && begin_pause(pool, replica))
        return;
    if (!replica->running.length) {
        if (!replica->waiting.length)
            return;
        replica->now_s = later(replica->now_s, pool->sequences[replica->waiting.head].arrival_s);
    }
    double kv = kv_tokens(pool, replica);
    if (kv > timing->kv_capacity_tokens)
        kv = evict(pool, replica, kv);
    end_loads(pool, replica);
    /* As in vLLM V1 a waiting prompt that fits joins the next iteration: no segment of decoding runs past it. */
    bool prefills = replica->prefilling.length > 0;
    if (!prefills && replica->waiting.length && replica->running.length < timing->max_sequences) {
        const Sequence *next = &pool->sequences[replica->waiting.head];
        prefills = next->arrival_s <= replica->now_s && kv + kv_of(pool, replica, next) <= timing->kv_capacity_tokens;
    }
    if (prefills)
        begin_prefill(pool, replica, kv);
    else
        begin_segment(pool, replica, kv);
}

/* --- what the pool asks of a replica ------------------------------------------------------------------------------ */

/* End a segment of decoding with the iteration that is in progress at time_s. */
void replica_end_early(const Pool *pool, Replica *replica, double time_s) {
    if (!replica->segment_iterations || replica->end_s == NOT_BEGUN || time_s >= replica->end_s)
        return;
    if (time_s <= replica->now_s) {
        replica->end_s = NOT_BEGUN;
        return;
    }
    const int64_t decoding = replica->running.length - replica->loading.length;
    const double context = context_sum(replica, replica->iteration) / (double)decoding;
    const Segment most = {replica->segment_iterations, replica->end_s - replica->now_s};
    const Segment cut = iterations_until(pool->timing, time_s - replica->now_s, decoding, context,
                                         replica->tokens_per_iteration / (double)decoding, most);
    replica->segment_iterations = replica->decoded = cut.iterations;
    replica->end_s = replica->now_s + cut.seconds;
}

/* Queue a sample at a time not before earlier submissions; one that could not fit even alone is noted instead. */
void replica_submit(Pool *pool, Replica *replica, double time_s, int32_t sample) {
    Sequence *sequence = &pool->sequences[sample];
    const double spare = pool->timing->kv_capacity_tokens - (double)pool->timing->tokens_per_sequence + 1;
    if (replica->absence.idle)
        absence_ends(&replica->absence, time_s);
    if ((double)(sequence->prompt + sequence->history + sequence->response) > spare) {
        pool->infeasible = sample;
        return;
    }
    sequence->arrival_s = time_s;
    list_append(&replica->waiting, pool->queue_links, sample);
    replica->waiting_prompts += sequence->prompt + sequence->history;
    replica->outstanding++;
    /* Only the head of the queue can be admitted, and only where a slot is free. */
    if (replica->waiting.length == 1 && replica->running.length < pool->timing->max_sequences)
        replica_end_early(pool, replica, time_s);
}

/* Whether a slot and KV cache for the prompt of a sample are free behind all that wait. */
bool replica_has_room(const Pool *pool, const Replica *replica, int32_t sample) {
    const IterationTimes *timing = pool->timing;
    const int64_t waiting = replica->waiting_prompts + (replica->waiting.length + 1) * timing->tokens_per_sequence;
    return replica->outstanding < timing->max_sequences
           && kv_tokens(pool, replica) + (double)waiting + (double)pool->sequences[sample].prompt
                  <= timing->kv_capacity_tokens;
}

/* End of the segment in progress, which begins with this call if need be; infinite when idle. */
double replica_next_event(Pool *pool, Replica *replica) {
    if (replica->end_s == NOT_BEGUN)
        begin(pool, replica);
    return replica->end_s == NOT_BEGUN ? INFINITY : replica->end_s;
}

/* Complete all segments that end by a time; what starts at that time itself is left for later. */
void replica_advance(Pool *pool, Replica *replica, double time_s) {
    while (replica->end_s != NOT_BEGUN || replica->now_s < time_s) {
        if (replica_next_event(pool, replica) > time_s)
            return;
        if (replica->end_s == NOT_BEGUN)
            return; /* idle for good */
        replica_finish(pool, replica);
    }
}
