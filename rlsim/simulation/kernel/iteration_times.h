/* Time of engine iterations; iteration_times.py has the equations. */
#ifndef RLSIM_ITERATION_TIMES_H
#define RLSIM_ITERATION_TIMES_H

#include <stdint.h>

/* Tables and limits of an engine. Rows of the tables: decoding sequences, 0 .. max_sequences.
 *
 * step_s: one value a row. attention_s, integral: knots values a row. prefill_s: one for each value of grid_tokens.
 * context_s, context_integral: knots values, of prefill behind a context. */
typedef struct {
    const double *step_s, *attention_s, *integral, *prefill_s, *grid_tokens, *context_s, *context_integral;
    double inverse_knot, kv_capacity_tokens;
    int64_t knots, grid, tokens_per_sequence, max_batched_tokens, max_sequences, chunked_prefill;
} IterationTimes;

/* Iterations and the seconds they take. */
typedef struct {
    int64_t iterations;
    double seconds;
} Segment;

double decode_s(const IterationTimes *timing, int64_t n, double mean_context);
double prefill_s(const IterationTimes *timing, int64_t n, int64_t tokens);
double behind_s(const IterationTimes *timing, int64_t tokens);
double segment_s(const IterationTimes *timing, int64_t n, double mean_context, double growth, int64_t iterations);
Segment iterations_until(const IterationTimes *timing, double time_s, int64_t n, double mean_context, double growth,
                         Segment most);

#endif
