/*
 * A simulated device in real time, for the programs that show it to clients.
 *
 * One thread, the clock, sleeps until the simulation's next event, lets it pass, and answers
 * the requests that are done. The model's time is real time divided by `slowdown`.
 */
#ifndef DISKSIM_DEVICE_H
#define DISKSIM_DEVICE_H

#include "sim.h"

/* Answer a request that is done: called by the clock, which must not wait. */
typedef void device_answer(struct request *request);

/* params, size, slowdown, log, or a parameter's name. Returns NULL, or the error. */
const char *device_option(const char *name, const char *value);

/* Are the options complete, and do they fit together? NULL, or the error. */
const char *device_check(void);

/* Bytes that clients see. */
uint64_t device_size(void);

/* Does the device take discards? */
bool device_discards(void);

/* Start the clock; NULL, or the error. */
const char *device_start(device_answer *answer);

/* A command arrives now. The request must stay until it is answered. */
void device_submit(struct request *request);

/* Stop the clock; requests that are not done get no answer. */
void device_stop(void);

#endif
