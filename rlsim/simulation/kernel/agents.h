/* Trajectories of several turns on a pool; agents.py has the rules. */
#ifndef RLSIM_AGENTS_H
#define RLSIM_AGENTS_H

#include "pool.h"

typedef struct Agents Agents;

void agents_submit(Agents *agents, double time_s, int32_t first, int32_t count);
bool agents_run(Agents *agents, double time_s, Finished finished, void *owner);

#endif
