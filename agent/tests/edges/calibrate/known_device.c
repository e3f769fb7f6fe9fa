/* A disk that serves four requests at a time. A read takes 2 ms, and 2 ms more for each 64 KiB; a
 * write twice as long. For nbdkit's cc plugin. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static void *known_open(int readonly)
{
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t known_get_size(void *handle)
{
    return INT64_C(256) << 20;
}

/* A request begins when a server is free, however late this process runs: who queues enough isn't
 * told of the machine's own delays. */
static int serve(int64_t microseconds)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int64_t free_at[4];
    struct timespec clock;
    int64_t now, wait;
    int server = 0;

    clock_gettime(CLOCK_MONOTONIC, &clock);
    now = clock.tv_sec * INT64_C(1000000) + clock.tv_nsec / 1000;
    pthread_mutex_lock(&lock);
    for (int i = 1; i < 4; i++)
        server = free_at[i] < free_at[server] ? i : server;
    free_at[server] = (free_at[server] > now ? free_at[server] : now) + microseconds;
    wait = free_at[server] - now;
    pthread_mutex_unlock(&lock);
    return nbdkit_nanosleep(wait / 1000000, wait % 1000000 * 1000);
}

static int known_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
    memset(buf, 1, count);
    return serve(2000 + INT64_C(2000) * count / 65536);
}

static int known_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset,
                        uint32_t flags)
{
    return serve(2 * (2000 + INT64_C(2000) * count / 65536));
}

static struct nbdkit_plugin plugin = {
    .name = "known",
    .open = known_open,
    .get_size = known_get_size,
    .pread = known_pread,
    .pwrite = known_pwrite,
};

NBDKIT_REGISTER_PLUGIN(plugin)
