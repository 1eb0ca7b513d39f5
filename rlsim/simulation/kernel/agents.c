/* Trajectories of several turns on a pool of replicas; the rules of agents.py, event for event. */
#include "agents.h"

#include <stdlib.h>

/* What the caller knows of trajectories; turns as in Trajectories of trajectories.py. Places: -1 for no limit. judges: 0
 * for no judge. timeout_s: infinite for none. calls, start_s: NULL for once each and no time; calls count down.
 * sandboxes: started ones that nobody has. interval_s: between two calls of a service, 0 for none. */
typedef struct {
    int64_t trajectories;
    const int64_t *first, *history, *response, *iterations;
    const double *environment_s, *judge_s;
    int64_t max_trajectories, max_environments, judges, keeps, sandboxes;
    double timeout_s, interval_s;
    int64_t *calls;
    const double *start_s;
    double *times_s, *away, *judge_times_s, *judged, *sandbox_times_s, *in_sandboxes;
    double *context_times_s, *contexts;
} Rules;

/* AgentCounters of trajectories.py, in the order of its fields. */
typedef struct {
    double turns, environment_s, queued_s, judge_s, judge_queued_s, environment_idle_s, judge_idle_s, reused_tokens;
    double loaded_tokens, timed_out, skipped_tokens, calls, start_s, sandbox_s;
} AgentCounters;

typedef enum { BEGINS, ANSWERED, JUDGED } Kind;

typedef struct {
    double time_s;
    int64_t order;
    int32_t trajectory;
    Kind kind;
} Event;

/* Places of environments, trajectories or a judge; the queue is a ring of who waits and since when. */
typedef struct {
    int64_t free;
    double *since_s, queued_s;
    int32_t *waiting, head, length;
} Places;

struct Agents {
    Pool *pool;
    Rules rules;
    Event *events;
    int32_t num_events, *started, num_started;
    int64_t foreseen, *turn;
    double *deadline_s, *since_s, *ready_s, service_free_s, service_queued_s;
    Places starts, environments, judges;
    bool submitting, stop;
    Finished finished;
    void *owner;
    AgentCounters counters;
    Presence environment, judge, sandbox, context;
};

/* --- what is to come ---------------------------------------------------------------------------------------------- */

static bool before(const Event *a, const Event *b) {
    return a->time_s < b->time_s || (a->time_s == b->time_s && a->order < b->order);
}

static void foresee(Agents *agents, double time_s, Kind kind, int32_t trajectory) {
    const Event event = {time_s, ++agents->foreseen, trajectory, kind};
    int32_t at = agents->num_events++;
    for (; at > 0 && before(&event, &agents->events[(at - 1) / 2]); at = (at - 1) / 2)
        agents->events[at] = agents->events[(at - 1) / 2];
    agents->events[at] = event;
}

static Event next_event(Agents *agents) {
    const Event first = agents->events[0], last = agents->events[--agents->num_events];
    int32_t at = 0;
    for (int32_t child = 1; child < agents->num_events; child = 2 * at + 1) {
        if (child + 1 < agents->num_events && before(&agents->events[child + 1], &agents->events[child]))
            child++;
        if (!before(&agents->events[child], &last))
            break;
        agents->events[at] = agents->events[child];
        at = child;
    }
    agents->events[at] = last;
    return first;
}

/* --- places ------------------------------------------------------------------------------------------------------- */

typedef void (*Begin)(Agents *agents, double time_s, int32_t trajectory);

/* A place for a trajectory, or one in the queue. */
static void ask(Agents *agents, Places *places, Begin begin, double time_s, int32_t trajectory) {
    if (places->free > 0) {
        places->free--;
        begin(agents, time_s, trajectory);
        return;
    }
    const int64_t at = ((int64_t)places->head + places->length++) % agents->rules.trajectories;
    places->since_s[at] = time_s;
    places->waiting[at] = trajectory;
}

/* A place is free; who waits longest takes it. */
static void leave(Agents *agents, Places *places, Begin begin, double time_s) {
    if (!places->length) {
        places->free++;
        return;
    }
    const int32_t at = places->head;
    places->head = (int32_t)(((int64_t)at + 1) % agents->rules.trajectories);
    places->length--;
    places->queued_s += time_s - places->since_s[at];
    begin(agents, time_s, places->waiting[at]);
}

/* --- what happens to a trajectory --------------------------------------------------------------------------------- */

static int32_t replica_of(const Agents *agents, int32_t trajectory) {
    return agents->pool->samples.replica[trajectory];
}

static Absence *absence_of(Agents *agents, int32_t trajectory) {
    return &replica_at(agents->pool, replica_of(agents, trajectory))->absence;
}

/* Its current turn is submitted (sign 1) or has ended (-1). */
static void count_context(Agents *agents, double time_s, int32_t trajectory, double sign) {
    const int64_t history = agents->rules.history[agents->turn[trajectory]];
    change(&agents->context, time_s, sign * (double)(agents->pool->sequences[trajectory].prompt + history));
}

/* Its sample becomes its current turn. */
static void set_turn(Agents *agents, int32_t trajectory) {
    const Rules *rules = &agents->rules;
    const int64_t turn = agents->turn[trajectory], total = rules->iterations[turn], response = rules->response[turn];
    Sequence *sequence = &agents->pool->sequences[trajectory];
    *sequence = (Sequence){.group = sequence->group, .prompt = sequence->prompt, .history = (int32_t)rules->history[turn],
                           .response = (int32_t)response, .total = (int32_t)total, .heap_key = NONE,
                           .tokens_per_iteration = total ? (double)(response - 1) / (double)total : 0.0};
}

/* A trajectory has a place; one that waited for it starts with the next event, or once its sandbox is ready. */
static void start(Agents *agents, double time_s, int32_t trajectory) {
    agents->since_s[trajectory] = time_s;
    change(&agents->sandbox, time_s, 1.0);
    if (agents->rules.start_s) {
        const double own_s = time_s + agents->rules.start_s[trajectory];
        const double ready_s = heap_pushpop(agents->ready_s, agents->rules.sandboxes, own_s);
        const double begins_s = ready_s > time_s ? ready_s : time_s;
        agents->counters.start_s += begins_s - time_s;
        foresee(agents, begins_s, BEGINS, trajectory);
        return;
    }
    if (!agents->submitting) {
        foresee(agents, time_s, BEGINS, trajectory);
        return;
    }
    agents->deadline_s[trajectory] = time_s + agents->rules.timeout_s;
    agents->started[agents->num_started++] = trajectory;
}

static void begins(Agents *agents, double time_s, int32_t trajectory) {
    agents->deadline_s[trajectory] = time_s + agents->rules.timeout_s;
    pool_submit(agents->pool, time_s, trajectory, 1);
    count_context(agents, time_s, trajectory, 1.0);
}

/* The environment begins to work after the turn that a trajectory ended. */
static void work(Agents *agents, double time_s, int32_t trajectory) {
    const double deadline_s = agents->deadline_s[trajectory];
    double seconds = agents->rules.environment_s[agents->turn[trajectory] - 1], begins_s = time_s;
    if (agents->rules.interval_s > 0.0) {
        begins_s = agents->service_free_s > time_s ? agents->service_free_s : time_s;
        if (begins_s <= deadline_s)
            agents->service_free_s = begins_s + agents->rules.interval_s;
    }
    double until_s = begins_s + seconds;
    if (until_s > deadline_s) {
        until_s = time_s > deadline_s ? time_s : deadline_s;
        begins_s = begins_s < until_s ? begins_s : until_s;
        seconds = until_s - begins_s;
    }
    agents->service_queued_s += begins_s - time_s;
    agents->counters.environment_s += seconds;
    agents->counters.calls += 1.0;
    foresee(agents, until_s, ANSWERED, trajectory);
}

static void judge(Agents *agents, double time_s, int32_t trajectory) {
    const double seconds = agents->rules.judge_s[trajectory];
    agents->counters.judge_s += seconds;
    foresee(agents, time_s + seconds, JUDGED, trajectory);
}

static void tell_owner(Agents *agents, double time_s, int32_t trajectory) {
    agents->pool->samples.finish_s[trajectory] = time_s;
    agents->stop |= agents->finished(agents->owner, time_s, trajectory, replica_of(agents, trajectory));
}

/* A trajectory generates no more. */
static void finish(Agents *agents, double time_s, int32_t trajectory) {
    const int64_t end = agents->rules.first[trajectory + 1];
    int64_t tokens = 0;
    for (int64_t turn = agents->turn[trajectory]; turn < end; turn++)
        tokens += agents->rules.response[turn];
    agents->counters.timed_out += agents->turn[trajectory] < end ? 1.0 : 0.0;
    agents->counters.skipped_tokens += (double)tokens;
    agents->counters.sandbox_s += time_s - agents->since_s[trajectory];
    change(&agents->sandbox, time_s, -1.0);
    leave(agents, &agents->starts, start, time_s);
    if (!agents->rules.judges) {
        tell_owner(agents, time_s, trajectory);
        return;
    }
    change(&agents->judge, time_s, 1.0);
    absence_judge(absence_of(agents, trajectory), time_s, 1);
    ask(agents, &agents->judges, judge, time_s, trajectory);
}

/* A turn has its last token; whether the pool must stop for what follows. */
static bool ended(void *owner, double time_s, int32_t trajectory, int32_t number) {
    Agents *agents = owner;
    Replica *replica = replica_at(agents->pool, number);
    const Sequence *sequence = &agents->pool->sequences[trajectory];
    count_context(agents, time_s, trajectory, -1.0);
    const int64_t foreseen = agents->foreseen, following = ++agents->turn[trajectory];
    agents->counters.turns += 1.0;
    agents->pool->samples.replica[trajectory] = number;
    absence_turn_ended(&replica->absence, time_s, !replica->outstanding);
    if (following == agents->rules.first[trajectory + 1] || time_s >= agents->deadline_s[trajectory]) {
        finish(agents, time_s, trajectory);
        return agents->stop || agents->foreseen > foreseen;
    }
    const bool kept = agents->rules.keeps && agents->rules.history[following];
    const int64_t tokens = kept ? sequence->prompt + sequence->history + agents->rules.response[following - 1] - 1 : 0;
    replica_leave(agents->pool, replica, time_s, trajectory, tokens);
    change(&agents->environment, time_s, 1.0);
    ask(agents, &agents->environments, work, time_s, trajectory);
    return agents->foreseen > foreseen;
}

static void answered(Agents *agents, double time_s, int32_t trajectory) {
    if (agents->rules.calls && time_s < agents->deadline_s[trajectory]
        && --agents->rules.calls[agents->turn[trajectory] - 1]) {
        work(agents, time_s, trajectory);
        return;
    }
    leave(agents, &agents->environments, work, time_s);
    change(&agents->environment, time_s, -1.0);
    if (time_s >= agents->deadline_s[trajectory]) {
        absence_environment(absence_of(agents, trajectory), time_s, -1);
        finish(agents, time_s, trajectory);
        return;
    }
    set_turn(agents, trajectory);
    count_context(agents, time_s, trajectory, 1.0);
    if (!agents->rules.history[agents->turn[trajectory]])
        agents->deadline_s[trajectory] = time_s + agents->rules.timeout_s;
    pool_return(agents->pool, time_s, replica_of(agents, trajectory), trajectory);
}

static void judged(Agents *agents, double time_s, int32_t trajectory) {
    leave(agents, &agents->judges, judge, time_s);
    change(&agents->judge, time_s, -1.0);
    absence_judge(absence_of(agents, trajectory), time_s, -1);
    tell_owner(agents, time_s, trajectory);
}

static void happen(Agents *agents, Event event) {
    if (event.kind == BEGINS)
        begins(agents, event.time_s, event.trajectory);
    else if (event.kind == ANSWERED)
        answered(agents, event.time_s, event.trajectory);
    else
        judged(agents, event.time_s, event.trajectory);
}

/* --- what the owner asks ------------------------------------------------------------------------------------------ */

/* Let the trajectories first, first + 1, ... start, those that may at once dispatched together. */
void agents_submit(Agents *agents, double time_s, int32_t first, int32_t count) {
    agents->submitting = true;
    agents->num_started = 0;
    for (int32_t i = 0; i < count; i++)
        ask(agents, &agents->starts, start, time_s, first + i);
    agents->submitting = false;
    if (agents->num_started) /* those that start are the first of them: a place is refused only once none is left */
        pool_submit(agents->pool, time_s, first, agents->num_started);
    for (int32_t i = 0; i < agents->num_started; i++) /* the pool has their prompts now */
        count_context(agents, time_s, first + i, 1.0);
}

/* Run until a time and tell of every end of a trajectory; whether the owner stopped the run. */
bool agents_run(Agents *agents, double time_s, Finished finished, void *owner) {
    agents->finished = finished;
    agents->owner = owner;
    agents->stop = false;
    for (;;) {
        const bool foreseen = agents->num_events > 0;
        const double next_s = foreseen ? agents->events[0].time_s : time_s, until_s = next_s < time_s ? next_s : time_s;
        if (!pool_run(agents->pool, until_s, ended, agents)) {
            if (!agents->num_events || agents->events[0].time_s > time_s)
                return false;
            while (agents->num_events && agents->events[0].time_s <= until_s)
                happen(agents, next_event(agents));
        }
        if (agents->stop)
            return true;
    }
}

static bool never(void *owner, double time_s, int32_t sample, int32_t replica) {
    (void)owner, (void)time_s, (void)sample, (void)replica;
    return false;
}

/* Run all trajectories from time 0. */
EXPORT void agents_run_all(Agents *agents) {
    agents_submit(agents, 0.0, 0, (int32_t)agents->rules.trajectories);
    agents_run(agents, INFINITY, never, NULL);
}

/* Write what was counted so far, and how many changes of each presence there were. */
EXPORT void agents_told(Agents *agents, double *counters, int64_t *changes) {
    AgentCounters *told = &agents->counters;
    told->queued_s = agents->environments.queued_s + agents->service_queued_s;
    told->judge_queued_s = agents->judges.queued_s;
    told->environment_idle_s = told->judge_idle_s = told->reused_tokens = told->loaded_tokens = 0.0;
    for (int32_t number = 0; number < agents->pool->num_replicas; number++) {
        const Replica *replica = replica_at(agents->pool, number);
        told->environment_idle_s += replica->absence.environment_s;
        told->judge_idle_s += replica->absence.judge_s;
        told->reused_tokens += (double)replica->kept.reused;
        told->loaded_tokens += (double)replica->kept.loaded;
    }
    *(AgentCounters *)counters = *told;
    changes[0] = agents->environment.length;
    changes[1] = agents->judge.length;
    changes[2] = agents->sandbox.length;
    changes[3] = agents->context.length;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

EXPORT void agents_free(Agents *agents) {
    if (!agents)
        return;
    void *parts[] = {agents->events, agents->started, agents->turn, agents->deadline_s, agents->since_s,
                     agents->ready_s, agents->starts.since_s, agents->starts.waiting, agents->environments.since_s, agents->environments.waiting,
                     agents->judges.since_s, agents->judges.waiting};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free(parts[i]);
    free(agents);
}

static bool places_new(Places *places, int64_t most, size_t trajectories) {
    places->free = most < 0 ? INT64_MAX / 2 : most;
    places->since_s = malloc(trajectories * sizeof *places->since_s);
    places->waiting = malloc(trajectories * sizeof *places->waiting);
    return places->since_s && places->waiting;
}

/* Trajectories that nobody has submitted; NULL without memory. The pool and what `rules` points to stay the caller's. */
EXPORT Agents *agents_new(Pool *pool, const Rules *rules) {
    const size_t count = (size_t)rules->trajectories;
    Agents *agents = calloc(1, sizeof *agents);
    if (!agents)
        return NULL;
    agents->pool = pool;
    agents->rules = *rules;
    agents->environment = (Presence){rules->times_s, rules->away, 0};
    agents->judge = (Presence){rules->judge_times_s, rules->judged, 0};
    agents->sandbox = (Presence){rules->sandbox_times_s, rules->in_sandboxes, 0};
    agents->context = (Presence){rules->context_times_s, rules->contexts, 0};
    agents->events = malloc(count * sizeof *agents->events);
    agents->started = malloc(count * sizeof *agents->started);
    agents->turn = malloc(count * sizeof *agents->turn);
    agents->deadline_s = calloc(count, sizeof *agents->deadline_s);
    agents->since_s = calloc(count, sizeof *agents->since_s);
    agents->ready_s = calloc(count, sizeof *agents->ready_s); /* the caller lets no more be started than that */
    const bool placed = places_new(&agents->starts, rules->max_trajectories, count)
                        && places_new(&agents->environments, rules->max_environments, count)
                        && places_new(&agents->judges, rules->judges, count);
    if (!placed || !agents->events || !agents->started || !agents->turn || !agents->deadline_s || !agents->since_s
        || !agents->ready_s) {
        agents_free(agents);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        agents->turn[i] = rules->first[i];
    return agents;
}
