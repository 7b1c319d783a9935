/* SPDX-License-Identifier: Apache-2.0
 *
 * quire-front: start, run, end. Exit codes: 0 stopped, 1 usage or configuration, 2 resources.
 *
 * main() opens everything in order: settings, tokenizer and templates, the links to the engines,
 * the listening socket. The readers start last; then main's thread becomes the streamer. */
#include <config.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/service.h"
#include "front/api/cache.h"
#include "front/front.h"

/* Open the socket for nginx: at the path of the setting, or the one that systemd passes. With
 * systemd's socket no connection is refused while a front restarts. */
static int main_open_listen(struct front *f)
{
    int flags;
    int rc = ERR_OK;

    if (f->settings.listen[0] != '\0') {
        rc = fcgi_listen(f->settings.listen, &f->listen_fd);
    } else {
        f->listen_fd = service_listen_fd();
        if (f->listen_fd == -1) {
            log_error("front: systemd passed no socket; set listen to the path of one");
            rc = ERR_INVALID;
        }
    }
    if (rc != ERR_OK)
        return rc;
    /* Several readers may be woken for one connection; the others must not block in accept(). */
    flags = fcntl(f->listen_fd, F_GETFL);
    if (flags == -1 || fcntl(f->listen_fd, F_SETFL, flags | O_NONBLOCK) == -1)
        return ERR_IO;
    return ERR_OK;
}

/* The models, and the parts of the front that they use. A model of a folder has one link. */
static int main_open_models(struct front *f)
{
    int rc = served_read(&f->models, &f->source);
    size_t n_links;

    if (rc != ERR_OK)
        return rc;
    n_links = (size_t)f->models.cap + (size_t)f->models.at[0].engines.n;
    f->served = f->models.at;
    f->links = mem_zalloc_array(n_links, sizeof(struct link *));
    f->served_of = mem_zalloc_array(n_links, sizeof(struct served *));
    if (f->links == NULL || f->served_of == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < f->models.n; i++)
        folder_show(f, &f->served[i]);
    return ERR_OK;
}

/* Everything but threads. The first error ends it; the process then exits, so nothing is undone. */
static int main_open(struct front *f)
{
    int rc = service_signal_fd(&f->signal_fd);

    /* Two counters that wake others: stop_fd all readers, handover_fd the streamer. */
    f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->handover_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->source.settings = &f->settings;
    f->source.handover_fd = f->handover_fd;
    if (rc == ERR_OK && (f->stop_fd == -1 || f->handover_fd == -1 ||
                         pthread_mutex_init(&f->handover_lock, NULL) != 0)) {
        log_error("front: eventfd: %s", strerror(errno));
        rc = ERR_IO;
    }
    if (rc == ERR_OK && f->settings.responses_dir[0] != '\0')
        rc = kept_open(&f->kept, f->settings.responses_dir, f->settings.responses_bytes,
                       f->settings.responses_days, f->handover_fd);
    if (rc == ERR_OK && f->settings.otlp_traces_endpoint[0] != '\0')
        rc = trace_open(&f->trace, f->settings.otlp_traces_endpoint);
    if (rc == ERR_OK)
        rc = main_open_models(f);
    if (rc == ERR_OK)
        rc = cache_open(f);
    if (rc == ERR_OK && sem_init(&f->reading, 0, (unsigned)f->settings.front_threads) != 0)
        rc = ERR_IO;
    if (rc == ERR_OK)
        rc = fcgi_start();
    if (rc == ERR_OK)
        rc = main_open_listen(f);
    if (rc == ERR_OK)
        rc = idle_pool_open(&f->idle_pool, f->listen_fd, f->stop_fd);
    return rc;
}

/* Start front_threads threads. Each reads and answers requests until the end. */
static int main_start_readers(struct front *f)
{
    int rc = ERR_OK;

    for (int i = 0; i < f->settings.front_threads && rc == ERR_OK; i++)
        rc = reader_start(f);
    return rc;
}

int main(int argc, char **argv)
{
    static struct front front = {
        .listen_fd = -1, .signal_fd = -1, .stop_fd = -1, .handover_fd = -1};
    bool exit_now = false;
    int rc;

    /* Before any thread starts, because threads inherit the mask. The streamer reads signals from
     * signal_fd. */
    service_block_signals();
    fault_init();
    if (settings_read(&front.settings, 'F', argc, argv, &exit_now) != ERR_OK)
        return 1;
    if (exit_now)
        return 0;
    front.source.argc = argc;
    front.source.argv = argv;
    mem_trim_always(); /* a request of 30 MB may need half a gigabyte for a moment */
    /* Each step runs only if all before it succeeded. */
    rc = log_set_level_text(front.settings.log_level);
    if (rc == ERR_OK)
        rc = main_open(&front);
    if (rc == ERR_OK)
        rc = main_start_readers(&front);
    if (rc == ERR_OK)
        rc = folder_start(&front);
    if (rc != ERR_OK) {
        log_error("front: cannot start: %s", err_sentence(rc));
        if (rc == ERR_NO_MEMORY || rc == ERR_IO)
            return 2;
        return 1;
    }
    service_ready();
    if (front.n_served > 1)
        log_info("front: ready, %d models", front.n_served);
    else
        log_info("front: ready, model %s", front.served[0].model_name);
    rc = streamer_run(&front);
    folder_end(&front);
    trace_close(front.trace);
    kept_close(front.kept);
    if (front.settings.listen[0] != '\0')
        (void)unlink(front.settings.listen);
    log_info("front: stopped");
    if (rc == ERR_OK)
        return 0;
    return 2;
}
