/*
 * A disk's service times, as a discrete-event simulation in integer nanoseconds.
 *
 * The simulation is a function of its arrivals alone: each moment's decisions depend on
 * the commands that had arrived by then, however late the caller's clock is. So a log of
 * arrivals gives the same completions again (see replay.c).
 *
 * Here's how it works: commands arrive into a queue, first in first out. The device
 * holds up to queue_depth of them; entering, they belong to the device's own model
 * (hdd.c, flash.c), which says by sim_finish() when they are done. Everything that
 * happens in between is an event of the model; events of one nanosecond happen in the
 * order in which they were scheduled, and before a command that arrives in it.
 */
#ifndef DISKSIM_SIM_H
#define DISKSIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "params.h"

#define NEVER INT64_MAX

enum op { OP_READ, OP_WRITE, OP_FLUSH, OP_DISCARD /* if the device has discard_mb_s */ };

struct request {
    /* Set by the caller. */
    uint64_t id;
    enum op op;
    bool fua; /* a write that is done only when it is on the medium */
    uint64_t offset;
    uint64_t length;
    void *owner;
    /* Set by the simulation: nanoseconds of its time. */
    int64_t arrival;
    int64_t entered; /* the device took it into its queue */
    int64_t start;   /* the arm, or the controller, turned to it */
    int64_t done;
    int unit; /* which served it: the arm is 0, flash units count from 0; -1: the buffer */
    /* The device's own. */
    struct request *next;
    uint64_t mark;     /* a flush or FUA write: it is done when this much is on the medium */
    double revolution; /* hard disk: its beginning on the spiral */
    uint32_t pages;    /* flash: how many are still being read */
};

struct queue {
    struct request *first;
    struct request **last;
};

struct event {
    int64_t at;
    uint64_t sequence;
    int kind; /* the device's, or EVENT_DONE */
    void *what;
};

/* Events, a binary heap by (at, sequence). */
struct agenda {
    struct event *heap;
    size_t events, room;
    uint64_t scheduled;
};

enum { EVENT_DONE = -1 };

struct sim {
    const struct params *params;
    void *device;
    int64_t now;
    uint64_t arrived;
    struct agenda agenda;
    /* Commands that the device has not taken yet, and how many it has. */
    struct queue waiting;
    unsigned inside;
    bool exclusive; /* a flush or a discard is alone in the device */
    struct queue finished;
};

/* Returns NULL when memory is short. params must outlive it. */
struct sim *sim_new(const struct params *params);
void sim_free(struct sim *sim);

/* A command arrives at `now`, which must not be before any earlier moment. */
void sim_submit(struct sim *sim, struct request *request, int64_t now);

/* Let time pass up to and including `now`; returns the requests done by then, in order. */
struct request *sim_advance(struct sim *sim, int64_t now);

/* The time of the next event, or NEVER. */
int64_t sim_next(const struct sim *sim);

/* Add an event; of those at one moment, the first one that was added comes first. */
void agenda_add(struct agenda *agenda, int64_t at, int kind, void *what);

/* Take the next event out; there has to be one. */
struct event agenda_take(struct agenda *agenda);

/* The time of the next event, or NEVER. */
int64_t agenda_next(const struct agenda *agenda);

/* For devices. */
void sim_schedule(struct sim *sim, int64_t at, int kind, void *what);
void sim_finish(struct sim *sim, struct request *request, int64_t at);
void queue_init(struct queue *queue);
void queue_put(struct queue *queue, struct request *request);
struct request *queue_take(struct queue *queue);
void *must(void *memory); /* ends the process if there is no memory */

/* The time that so many bytes take at a rate of 10^6 bytes a second. */
int64_t transfer_ns(uint64_t bytes, double mb_s);

void *hdd_new(const struct params *params);
void hdd_free(void *device);
void hdd_enter(struct sim *sim, struct request *request);
void hdd_event(struct sim *sim, int kind, void *what);

void *flash_new(const struct params *params);
void flash_free(void *device);
void flash_enter(struct sim *sim, struct request *request);
void flash_event(struct sim *sim, int kind, void *what);

#endif
