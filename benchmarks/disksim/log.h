/* The event log: one line of comma-separated values a command, in the order of completion. */
#ifndef DISKSIM_LOG_H
#define DISKSIM_LOG_H

#include <inttypes.h>
#include <stdio.h>

#include "sim.h"

#define LOG_HEADER "id,op,fua,offset,length,arrival_ns,entered_ns,start_ns,unit,done_ns,actual_ns"

static const char *const log_ops[] = { "read", "write", "flush", "discard" };

/* actual: when the answer was given, in nanoseconds of the model's time. */
static inline void log_request(FILE *log, const struct request *r, int64_t actual)
{
    fprintf(log, "%" PRIu64 ",%s,%d,%" PRIu64 ",%" PRIu64 ",%" PRId64 ",%" PRId64 ",%" PRId64
            ",%d,%" PRId64 ",%" PRId64 "\n", r->id, log_ops[r->op], r->fua, r->offset, r->length,
            r->arrival, r->entered, r->start, r->unit, r->done, actual);
}

#endif
