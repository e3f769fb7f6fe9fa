/*
 * nbdkit's plugin: a simulated device for NBD clients.
 *
 * Each command is a thread of nbdkit, which sleeps on its own semaphore until the device
 * answers. No data is kept: reads return a pattern. With store=FILE, data is kept in that
 * sparse file.
 */
#define NBDKIT_API_VERSION 2
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#include <errno.h>
#include <fcntl.h>
#include <nbdkit-plugin.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

static char *store_path;
static int store = -1;

static void answer(struct request *request)
{
    sem_post(request->owner);
}

static void serve(enum op op, bool fua, uint64_t offset, uint64_t length)
{
    struct request request = { .op = op, .fua = fua, .offset = offset, .length = length };
    sem_t done;

    sem_init(&done, 0, 0);
    request.owner = &done;
    device_submit(&request);
    while (sem_wait(&done) != 0)
        ;
    sem_destroy(&done);
}

static int failed(const char *error)
{
    if (error)
        nbdkit_error("%s", error);
    return error ? -1 : 0;
}

static int disksim_config(const char *key, const char *value)
{
    if (strcmp(key, "store") == 0) {
        free(store_path);
        return (store_path = nbdkit_absolute_path(value)) ? 0 : -1;
    }
    if (strcmp(key, "log") != 0)
        return failed(device_option(key, value));
    char *path = nbdkit_absolute_path(value); /* nbdkit leaves its folder */
    const char *error = path ? device_option(key, path) : "out of memory";
    free(path);
    return failed(error);
}

static int disksim_config_complete(void)
{
    return failed(device_check());
}

/* After nbdkit has forked: open files, start the clock. */
static int disksim_after_fork(void)
{
    if (store_path) {
        store = open(store_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (store == -1 || ftruncate(store, (off_t)device_size()) == -1) {
            nbdkit_error("%s: %m", store_path);
            return -1;
        }
    }
    return failed(device_start(answer));
}

/* No client is connected any more. */
static void disksim_cleanup(void)
{
    device_stop();
    if (store != -1)
        close(store);
}

static void disksim_unload(void)
{
    free(store_path);
}

static void *disksim_open(int readonly)
{
    (void)readonly;
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t disksim_get_size(void *handle)
{
    (void)handle;
    return (int64_t)device_size();
}

static int disksim_can_multi_conn(void *handle)
{
    (void)handle;
    return 1; /* one device, whoever asks */
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

static int disksim_can_trim(void *handle)
{
    (void)handle;
    return device_discards();
}

/* A store keeps what is discarded: NBD allows that. */
static int disksim_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
    (void)handle;
    (void)flags;
    serve(OP_DISCARD, false, offset, count);
    return 0;
}

static struct nbdkit_plugin plugin = {
    .name = "disksim",
    .longname = "iokeel's simulated disk",
    .description = "A disk that answers as late as a real one would",
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
    .can_trim = disksim_can_trim,
    .trim = disksim_trim,
    .errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN(plugin)
