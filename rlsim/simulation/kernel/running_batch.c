/* What a replica holds and how it leaves; the rules of RunningBatch in requests.py, function for
 * function and sum for sum. */
#include "running_batch.h"

#include <string.h>

/* Take a decoding sequence out of the sums; it holds only its prompt afterwards. */
void leave_decoding(Replica *replica, Sequence *sequence) {
    sequence->heap_key = NONE;
    replica->context_at_zero -= sequence->context_at_zero;
    replica->tokens_per_iteration -= sequence->tokens_per_iteration;
    replica->held += (double)sequence->prompt;
}

/* Leave decoding or prefill with nothing but the prompt held. */
static void stop(Pool *pool, Replica *replica, int32_t i) {
    Sequence *sequence = &pool->sequences[i];
    if (sequence->heap_key == NONE) {
        list_remove(sequence->loading ? &replica->loading : &replica->prefilling, pool->queue_links, i);
        sequence->loading = false;
        replica->held -= own_tokens(sequence);
    } else {
        sequence->done = (uint32_t)(sequence->total - (sequence->last_iteration - replica->iteration));
        leave_decoding(replica, sequence);
        replica->heap_stale++;
    }
}

/* Arrays for so many sequences, or only what they take where the memory is only counted. */
void replica_take_room(Replica *replica, Block *memory, int32_t room) {
    uint64_t places = 4;
    while (places < PLACES * (uint64_t)room)
        places *= 2;
    replica->heap = part(memory, PLACES * (size_t)room * sizeof *replica->heap);
    replica->running.samples = part(memory, PLACES * (size_t)room * sizeof *replica->running.samples);
    replica->residents = (Residents){part(memory, places * sizeof *replica->residents.places), places - 1};
    replica->room = room;
}

/* Twice the room, up to the slots. What is in the arrays moves on; their memory is not used again. */
static void grow(Pool *pool, Replica *replica) {
    const Replica before = *replica;
    const int32_t slots = pool->slots;
    replica_take_room(replica, &pool->memory, slots < 2 * before.room ? slots : 2 * before.room);
    memcpy(replica->heap, before.heap, (size_t)before.heap_length * sizeof *before.heap);
    memcpy(replica->running.samples, before.running.samples, (size_t)before.running.end * sizeof *before.running.samples);
    /* Places of a hash table depend on its size: every entry is put in anew. */
    for (uint64_t at = 0; at <= before.residents.mask; at++)
        if (before.residents.places[at].count)
            replica->residents.places[residents_find(&replica->residents, before.residents.places[at].key)] =
                before.residents.places[at];
}

/* A sample is admitted; where no place is left behind the last one, all move together. */
void running_append(Pool *pool, Replica *replica, int32_t sample) {
    Running *running = &replica->running;
    if (running->length == replica->room)
        grow(pool, replica);
    if (running->end == PLACES * replica->room) {
        const int32_t end = running->end;
        running->end = 0;
        for (int32_t k = 0; k < end; k++)
            if (running->samples[k] != NONE) {
                pool->sequences[running->samples[k]].place = running->end;
                running->samples[running->end++] = running->samples[k];
            }
    }
    pool->sequences[sample].place = running->end;
    running->samples[running->end++] = sample;
    running->length++;
}

/* Free the slot of a sequence, and its prompt where no other resident one shares it. */
void remove_running(Pool *pool, Replica *replica, int32_t i) {
    const Sequence *sequence = &pool->sequences[i];
    Running *running = &replica->running;
    running->samples[sequence->place] = NONE;
    running->length--;
    /* The newest is the one that is evicted: the last place must hold one that runs. */
    while (running->end && running->samples[running->end - 1] == NONE)
        running->end--;
    if (pool->sharing && residents_remove(&replica->residents, sequence->group))
        return;
    replica->held -= (double)sequence->prompt;
    /* Sums of additions and subtractions keep rounding errors; an empty batch is where they are known to be 0. */
    if (!replica->running.length)
        replica->context_at_zero = replica->tokens_per_iteration = replica->held = 0.0;
}

/* Send the newest running sequences back to the head of the queue until the rest fits; KV tokens left. */
double evict(Pool *pool, Replica *replica, double kv) {
    while (kv > pool->timing->kv_capacity_tokens && replica->running.length > 1) {
        const int32_t i = replica->running.samples[replica->running.end - 1];
        stop(pool, replica, i);
        remove_running(pool, replica, i);
        list_prepend(&replica->waiting, pool->queue_links, i);
        pool->sequences[i].arrival_s = replica->now_s; /* it has been there for long */
        replica->waiting_prompts += pool->sequences[i].prompt + pool->sequences[i].history;
        pool->counters->preemptions++;
        kv = kv_tokens(pool, replica);
    }
    return kv;
}

/* A cancelled sample has left. */
static void discard(Pool *pool, Replica *replica, int32_t i) {
    replica->emitted.discarded_tokens += emitted_tokens(&pool->sequences[i], 0);
    pool->cancelled[i] = false;
    if (pool->counts)
        ordered_set(&pool->load, replica->number, ordered_key(&pool->load, replica->number) - 1);
}

/* Samples that are cancelled leave, whether they run or wait. */
void cancel(Pool *pool, Replica *replica) {
    for (int32_t k = 0; k < replica->running.end; k++) {
        const int32_t i = replica->running.samples[k];
        if (i == NONE || !pool->cancelled[i])
            continue;
        stop(pool, replica, i);
        remove_running(pool, replica, i);
        replica->outstanding--;
        discard(pool, replica, i);
    }
    for (int32_t i = replica->waiting.head, next; i != NONE; i = next) {
        next = link_of(pool->queue_links, i)->next;
        if (!pool->cancelled[i])
            continue;
        list_remove(&replica->waiting, pool->queue_links, i);
        replica->waiting_prompts -= pool->sequences[i].prompt + pool->sequences[i].history;
        replica->outstanding--;
        discard(pool, replica, i);
    }
}

/* A sample that has begun starts again from its prompt. */
static void forget_one(Replica *replica, Sequence *sequence) {
    replica->emitted.regenerated_tokens += emitted_tokens(sequence, 0);
    sequence->done = 0;
    sequence->resumed = false;
}

/* Samples that have begun start again: running ones in place, others when they are next. */
void forget(Pool *pool, Replica *replica) {
    for (int32_t k = 0; k < replica->running.end; k++) {
        const int32_t i = replica->running.samples[k];
        if (i == NONE)
            continue;
        Sequence *sequence = &pool->sequences[i];
        stop(pool, replica, i);
        forget_one(replica, sequence);
        replica->held += own_tokens(sequence);
        list_append(&replica->prefilling, pool->queue_links, i);
    }
    for (int32_t i = replica->waiting.head; i != NONE; i = link_of(pool->queue_links, i)->next)
        forget_one(replica, &pool->sequences[i]);
}

/* All resident sequences prefill their context again, in the order of their admission. */
void prefill_again(Pool *pool, Replica *replica) {
    const int64_t recomputation = ++pool->recomputations;
    for (int32_t k = 0; k < replica->running.end; k++) {
        const int32_t i = replica->running.samples[k];
        if (i == NONE)
            continue;
        Sequence *sequence = &pool->sequences[i];
        stop(pool, replica, i);
        replica->held += own_tokens(sequence);
        const int64_t tokens = sequence->history + generated(sequence);
        const bool known = pool->sharing && pool->seen[sequence->group] == recomputation;
        pool->seen[sequence->group] = recomputation;
        sequence->prefill_end = sequence->prompt + (int32_t)tokens;
        sequence->prefill_left = known ? (tokens > 1 ? (int32_t)tokens : 1) : sequence->prefill_end;
        list_append(&replica->prefilling, pool->queue_links, i);
    }
}

/* Unfinished samples and the response tokens that each has so far; how many there are. */
int64_t replica_in_progress(const Pool *pool, const Replica *replica, int64_t *samples, double *tokens) {
    int64_t count = 0;
    for (int32_t i = replica->waiting.head; i != NONE; i = link_of(pool->queue_links, i)->next) {
        samples[count] = i;
        tokens[count++] = emitted_tokens(&pool->sequences[i], 0);
    }
    for (int32_t k = 0; k < replica->running.end; k++) {
        const int32_t i = replica->running.samples[k];
        if (i == NONE)
            continue;
        const Sequence *sequence = &pool->sequences[i];
        const int64_t since = sequence->total - (sequence->last_iteration - replica->iteration) - sequence->done;
        samples[count] = i;
        tokens[count++] = emitted_tokens(sequence, sequence->heap_key == NONE ? 0 : since);
    }
    return count;
}
