/*
 * How much does a throttle group let through whose members are in several
 * iothreads?
 *
 *   throttle-threads THREADS LIMIT FIRST MS
 *
 * A member in each of THREADS iothreads always has 32 requests of 512 bytes
 * to a null device. The group's limit is FIRST operations a second for 0.3 s,
 * then LIMIT. After half a second, MS milliseconds are measured. Prints
 * operations a second, and the microseconds of CPU time that one takes.
 *
 * qemu-patches/build puts this beside QEMU's unit tests, stock and patched.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "block/block_int.h"
#include "block/throttle-groups.h"
#include "qapi/error.h"
#include "qemu/main-loop.h"
#include "qemu/module.h"
#include "qobject/qdict.h"
#include "system/block-backend.h"
#include "iothread.h"

#define THREADS_MAX 16
#define DEPTH 32

typedef struct {
    BlockBackend *blk;
    uint64_t requests;      /* accessed with atomic operations */
} Member;

static Member members[THREADS_MAX];

static void coroutine_fn request_loop(void *opaque)
{
    Member *m = opaque;
    uint8_t buf[512] = { 0 };

    while (true) {
        blk_co_pread(m->blk, 0, sizeof(buf), buf, 0);
        qatomic_inc(&m->requests);
    }
}

static void set_limit(uint64_t limit)
{
    ThrottleConfig cfg;

    throttle_config_init(&cfg);
    cfg.buckets[THROTTLE_OPS_TOTAL].avg = limit;
    throttle_group_config(blk_bs(members[0].blk)->opaque, &cfg);
}

static void poll_for_ms(int64_t ms)
{
    int64_t end = g_get_monotonic_time() + ms * 1000;

    while (g_get_monotonic_time() < end) {
        if (!aio_poll(qemu_get_aio_context(), false)) {
            g_usleep(2000);
        }
    }
}

static uint64_t count(int threads)
{
    uint64_t sum = 0;

    while (threads--) {
        sum += qatomic_read(&members[threads].requests);
    }
    return sum;
}

static double cpu_us(void)
{
    struct timespec used;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1e6 + used.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
    int i, j, threads = argc == 5 ? atoi(argv[1]) : 0;
    uint64_t limit, before, done;
    int64_t start_us;
    double start_cpu_us, used_us;

    if (threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: %s THREADS LIMIT FIRST MS\n", argv[0]);
        return 2;
    }
    limit = strtoull(argv[2], NULL, 10);

    qemu_init_main_loop(&error_fatal);
    bdrv_init();
    module_call_init(MODULE_INIT_QOM);
    throttle_group_incref("group");

    for (i = 0; i < threads; i++) {
        QDict *options = qdict_new();

        qdict_put_str(options, "driver", "throttle");
        qdict_put_str(options, "throttle-group", "group");
        qdict_put_str(options, "file.driver", "null-aio");
        qdict_put_str(options, "file.size", "1048576");
        members[i].blk = blk_new_open(NULL, NULL, options, BDRV_O_RDWR,
                                      &error_abort);
        blk_set_allow_aio_context_change(members[i].blk, true);
        blk_set_aio_context(members[i].blk,
                            iothread_get_aio_context(iothread_new()),
                            &error_abort);
    }
    set_limit(strtoull(argv[3], NULL, 10));
    for (i = 0; i < threads; i++) {
        for (j = 0; j < DEPTH; j++) {
            aio_co_enter(blk_get_aio_context(members[i].blk),
                         qemu_coroutine_create(request_loop, &members[i]));
        }
    }
    poll_for_ms(300);
    set_limit(limit);
    poll_for_ms(500);

    before = count(threads);
    start_us = g_get_monotonic_time();
    start_cpu_us = cpu_us();
    poll_for_ms(atoi(argv[4]));
    done = count(threads) - before;
    used_us = cpu_us() - start_cpu_us;

    printf("%.0f %.3f\n", done * 1e6 / (g_get_monotonic_time() - start_us),
           used_us / MAX(done, 1));
    fflush(stdout);
    _exit(0);   /* the requests go on */
}
