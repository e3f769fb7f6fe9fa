/*
 * A host in virtual time: guests' loads, QEMU's throttle groups, and a simulated disk.
 *
 * A library for Python (bench/virtual/host.py), which plays the controller: it lets time pass
 * to a moment, reads counters, and sets limits. Nothing here knows the real time, so a run's
 * figures depend on its seed alone. All times are nanoseconds of the host's clock, which runs
 * `slowdown` times as fast as the disk's.
 */
#ifndef DISKSIM_HOST_H
#define DISKSIM_HOST_H

#include <stdint.h>

#define HOST_POINTS 32 /* of a cost curve, at most */
#define HOST_SIZES 16  /* of a job's requests, at most */
#define HOST_BINS 64   /* powers of two */

/* QEMU's order: bps total, read, write; iops total, read, write. 0: no limit. */
struct host_limits {
    double avg[6], max[6], length[6];
    double iops_size;
    int32_t points[2]; /* of the curves of reads and of writes; 0: none */
    double size[2][HOST_POINTS], cost[2][HOST_POINTS];
    int64_t split_bytes;  /* 0: large reads stay whole */
    int64_t idle_credit_ns;
    double max_in_flight; /* 0: no bound */
};

/* Of a drive's requests in one direction: as its guest counts them, and its throttle group. */
struct host_counts {
    int64_t requests, bytes, time_ns; /* that ended; the wait in the throttle is part of it */
    int64_t passed, passed_bytes;     /* that the throttle let pass */
    double cost;
    int64_t waited, wait_ns, waiting;
    int64_t ended, below_ns;          /* below the throttle, each part of a read */
    int64_t sizes[HOST_BINS], below[HOST_BINS];
};

struct host_disk_counts {
    int64_t requests[2], bytes[2], time_ns[2];
    int64_t in_flight, busy_ns;
};

struct host_job {
    int32_t drive, depth, random, syncs; /* syncs: after each write */
    double read_part;                    /* of its requests */
    int32_t sizes[2];                    /* how many, of reads and of writes */
    int64_t size[2][HOST_SIZES];
    double weight[2][HOST_SIZES];
    int64_t offset, bytes;               /* where on the drive */
    int64_t start_ns, end_ns;
    int64_t amount;                      /* bytes to do; 0: until the end */
    int64_t busy_ns, pause_ns;           /* in turn; busy 0: no pauses */
    double rate;                         /* requests a second at most; 0: any */
    int64_t spread_ns;                   /* its requests begin within so long */
};

/* A drive's requests in the order of their ends. */
struct host_log {
    int64_t entries;
    const int64_t *at_ns, *latency_ns;
    const int32_t *bytes;
    const uint8_t *is_write;
};

struct host;

/*
 * params: a device's file. late_ns: how late timers are on average. Returns NULL, and
 * host_error() says why.
 */
struct host *host_new(const char *params, double slowdown, uint64_t seed, int64_t late_ns);
const char *host_error(void);

/* Requests that are under way are lost to the process: a run is one. */
void host_free(struct host *host);

/* Change a parameter of the disk, before host_begin(). NULL, or the error. */
const char *host_param(struct host *host, const char *name, const char *value);

/* To be called once, before time passes. NULL, or the error. */
const char *host_begin(struct host *host);

/* keeps_levels: new limits leave its buckets as full as they are; stock QEMU empties them. */
int32_t host_group(struct host *host, int32_t keeps_levels);

/* path_ns, byte_ns: what the way to the disk and back takes, for a request and for each byte. */
int32_t host_drive(struct host *host, int32_t group, int64_t offset, int64_t path_ns,
                   double byte_ns);
void host_job(struct host *host, const struct host_job *job);
void host_set(struct host *host, int32_t group, const struct host_limits *limits);

/* Let time pass up to and including `until`. */
void host_run(struct host *host, int64_t until);

void host_drive_counts(struct host *host, int32_t drive, int32_t write, struct host_counts *counts);
void host_disk_counts(struct host *host, struct host_disk_counts *counts);
void host_drive_log(struct host *host, int32_t drive, struct host_log *log);

#endif
