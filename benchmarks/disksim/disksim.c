/*
 * nbdkit's plugin: a disk that answers when its model says so.
 *
 * Each command is a thread of nbdkit, which hands it to the simulation and sleeps on its own
 * semaphore. One thread, the clock, sleeps until the simulation's next event, lets it pass,
 * and wakes whoever is done. Real time becomes the model's by division by `slowdown`.
 *
 * No data is kept: what is read is a pattern. With store=FILE it is kept in that file, sparse.
 */
#define NBDKIT_API_VERSION 2
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#include <errno.h>
#include <fcntl.h>
#include <nbdkit-plugin.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

static struct params params;
static int64_t size = -1; /* bytes exported; -1: the whole capacity */
static double slowdown = 1;
static char *log_path, *store_path;

static FILE *log_file;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int store = -1;
static struct timespec began;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t earlier; /* the next event, than the clock thread thinks */
static struct sim *sim;
static int64_t clock_until;
static bool stopping;
static pthread_t clock_thread;

static int64_t model_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t real = (now.tv_sec - began.tv_sec) * INT64_C(1000000000) + now.tv_nsec - began.tv_nsec;
    return slowdown == 1 ? real : (int64_t)((double)real / slowdown);
}

static struct timespec real_time(int64_t model)
{
    int64_t ns = began.tv_nsec + (slowdown == 1 ? model : (int64_t)((double)model * slowdown) + 1);

    return (struct timespec){ began.tv_sec + ns / 1000000000, ns % 1000000000 };
}

static void *run_clock(void *unused)
{
    (void)unused;
    prctl(PR_SET_TIMERSLACK, 1UL); /* the kernel may be 50 us late otherwise */
    pthread_mutex_lock(&lock);
    while (!stopping) {
        struct request *finished = sim_advance(sim, model_now());
        while (finished) {
            struct request *next = finished->next;
            sem_post(finished->owner); /* its memory may be gone after that */
            finished = next;
        }
        clock_until = sim_next(sim);
        if (clock_until == NEVER) {
            pthread_cond_wait(&earlier, &lock);
        } else {
            struct timespec until = real_time(clock_until);
            pthread_cond_timedwait(&earlier, &lock, &until);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void serve(enum op op, bool fua, uint64_t offset, uint64_t length)
{
    struct request request = { .op = op, .fua = fua, .offset = offset, .length = length };
    sem_t done;

    sem_init(&done, 0, 0);
    request.owner = &done;
    pthread_mutex_lock(&lock);
    int64_t now = model_now();
    sim_submit(sim, &request, now > sim->now ? now : sim->now);
    if (sim->finished.first || sim_next(sim) < clock_until)
        pthread_cond_signal(&earlier);
    pthread_mutex_unlock(&lock);
    while (sem_wait(&done) != 0)
        ;
    sem_destroy(&done);
    if (log_file) {
        int64_t actual = model_now();
        pthread_mutex_lock(&log_lock);
        log_request(log_file, &request, actual);
        pthread_mutex_unlock(&log_lock);
    }
}

static void disksim_load(void)
{
    params = params_none();
}

static void disksim_unload(void)
{
    free(log_path);
    free(store_path);
}

static int own_path(char **path, const char *value)
{
    free(*path);
    return (*path = nbdkit_absolute_path(value)) ? 0 : -1;
}

static int disksim_config(const char *key, const char *value)
{
    if (strcmp(key, "log") == 0)
        return own_path(&log_path, value);
    if (strcmp(key, "store") == 0)
        return own_path(&store_path, value);
    if (strcmp(key, "size") == 0)
        return (size = nbdkit_parse_size(value)) == -1 ? -1 : 0;
    if (strcmp(key, "slowdown") == 0) {
        char *end;
        slowdown = strtod(value, &end);
        if (end == value || *end || !(slowdown >= 0.001 && slowdown <= 1e6)) {
            nbdkit_error("slowdown is from 0.001 to 1000000, not %s", value);
            return -1;
        }
        return 0;
    }
    const char *error = strcmp(key, "params") == 0 ? params_read(&params, value)
                        : params_set(&params, key, value);
    if (error)
        nbdkit_error("%s", error);
    return error ? -1 : 0;
}

static int disksim_config_complete(void)
{
    const char *error = params_check(&params);

    if (error) {
        nbdkit_error("%s; params=FILE gives a device", error);
        return -1;
    }
    if (size == -1)
        size = (int64_t)params.capacity;
    if (size <= 0 || (double)size > params.capacity) {
        nbdkit_error("size is up to the capacity of %.0f bytes", params.capacity);
        return -1;
    }
    return 0;
}

/* After nbdkit has forked: open files, start the clock. */
static int disksim_after_fork(void)
{
    pthread_condattr_t monotonic;

    if (store_path) {
        store = open(store_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (store == -1 || ftruncate(store, size) == -1) {
            nbdkit_error("%s: %m", store_path);
            return -1;
        }
    }
    if (log_path) {
        log_file = fopen(log_path, "we");
        if (!log_file) {
            nbdkit_error("%s: %m", log_path);
            return -1;
        }
        setvbuf(log_file, NULL, _IOFBF, 1 << 20);
        fputs(LOG_HEADER "\n", log_file);
    }
    if (!(sim = sim_new(&params))) {
        nbdkit_error("out of memory");
        return -1;
    }
    clock_gettime(CLOCK_MONOTONIC, &began);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&earlier, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if ((errno = pthread_create(&clock_thread, NULL, run_clock, NULL)) != 0) {
        nbdkit_error("the clock's thread: %m");
        return -1;
    }
    return 0;
}

/* No client is connected any more. */
static void disksim_cleanup(void)
{
    if (!sim)
        return;
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_signal(&earlier);
    pthread_mutex_unlock(&lock);
    pthread_join(clock_thread, NULL);
    sim_free(sim);
    sim = NULL;
    if (log_file)
        fclose(log_file);
    if (store != -1)
        close(store);
}

static void *disksim_open(int readonly)
{
    (void)readonly;
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t disksim_get_size(void *handle)
{
    (void)handle;
    return size;
}

static int disksim_can_multi_conn(void *handle)
{
    (void)handle;
    return 1; /* one model, whoever asks */
}

static int disksim_can_fua(void *handle)
{
    (void)handle;
    return NBDKIT_FUA_NATIVE;
}

static int disksim_can_cache(void *handle)
{
    (void)handle;
    return NBDKIT_CACHE_NONE;
}

static int disksim_pread(void *handle, void *buffer, uint32_t count, uint64_t offset,
                         uint32_t flags)
{
    (void)handle;
    (void)flags;
    serve(OP_READ, false, offset, count);
    if (store == -1) {
        memset(buffer, 0xd1, count); /* QEMU takes zeroes for holes */
        return 0;
    }
    for (char *at = buffer; count > 0;) {
        ssize_t n = pread(store, at, count, (off_t)offset);
        if (n <= 0) {
            nbdkit_error("reading %s: %m", store_path);
            return -1;
        }
        at += n;
        offset += (uint64_t)n;
        count -= (uint32_t)n;
    }
    return 0;
}

static int disksim_pwrite(void *handle, const void *buffer, uint32_t count, uint64_t offset,
                          uint32_t flags)
{
    (void)handle;
    if (store != -1) {
        uint64_t at = offset;
        uint32_t left = count;
        for (const char *from = buffer; left > 0;) {
            ssize_t n = pwrite(store, from, left, (off_t)at);
            if (n <= 0) {
                nbdkit_error("writing %s: %m", store_path);
                return -1;
            }
            from += n;
            at += (uint64_t)n;
            left -= (uint32_t)n;
        }
    }
    serve(OP_WRITE, flags & NBDKIT_FLAG_FUA, offset, count);
    return 0;
}

static int disksim_flush(void *handle, uint32_t flags)
{
    (void)handle;
    (void)flags;
    serve(OP_FLUSH, false, 0, 0);
    return 0;
}

static struct nbdkit_plugin plugin = {
    .name = "disksim",
    .longname = "iokeel's simulated disk",
    .description = "A disk that answers as late as a real one would",
    .load = disksim_load,
    .unload = disksim_unload,
    .config = disksim_config,
    .config_complete = disksim_config_complete,
    .config_help = "params=FILE     (required) The device, see README.md; NAME=VALUE changes it\n"
                   "size=SIZE       Export the first so many bytes (default: the capacity)\n"
                   "slowdown=N      Stretch all times (default: 1)\n"
                   "log=FILE        Log every command\n"
                   "store=FILE      Keep the data in a sparse file (default: it is dropped)",
    .magic_config_key = "params",
    .after_fork = disksim_after_fork,
    .cleanup = disksim_cleanup,
    .open = disksim_open,
    .get_size = disksim_get_size,
    .can_multi_conn = disksim_can_multi_conn,
    .can_fua = disksim_can_fua,
    .can_cache = disksim_can_cache,
    .pread = disksim_pread,
    .pwrite = disksim_pwrite,
    .flush = disksim_flush,
    .errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN(plugin)
