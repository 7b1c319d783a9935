/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of models while the front runs. A thread looks at it once a second: the model of a new
 * file is served, one whose file is gone gets no further request, and one that could not be read is
 * tried again when its file has changed. A change of a model that is served needs new processes,
 * because its texts and its engine must agree; a line in the log says so.
 *
 * A model is never freed: requests of any age may refer to it. SERVED_MAX bounds them. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "front/front.h"

/* A model's place in the lists that other threads read: the numbers come last. */
void folder_show(struct front *f, struct served *m)
{
    int n = f->n_links;

    /* While a reader waits for the compilation of another one, a further reader may work. */
    m->compiled.before_wait = reader_step_aside;
    m->compiled.after_wait = reader_step_back;
    m->compiled.wait_arg = f;
    for (int k = 0; k < m->engines.n; k++) {
        f->served_of[n] = m;
        f->links[n++] = &m->engines.links[k];
    }
    f->n_links = n;
    f->n_served++;
}

/* A model's file is gone, or is another one. */
static void folder_remove(struct served *m)
{
    atomic_store(&m->removed, true);
}

/* Compare a model with its file. */
static void folder_check(const struct front *f, struct served *m, const struct models *found)
{
    struct models_file file = models_state_of(f->settings.models_dir, m->file_name);

    if (!models_have(found, m->file_name) || file.changed_ns == 0) {
        if (++m->n_missing < MODELS_MISSING)
            return;
        log_info("front: model %s is served no more: its file is gone", m->file_name);
        folder_remove(m);
        return;
    }
    m->n_missing = 0;
    if (models_same_file(&file, &m->file))
        return;
    if (m->why != NULL) {
        folder_remove(m); /* it is read as a new one */
        return;
    }
    log_warn("front: %s/%s.conf has changed: its engine uses it when it starts next (unload ends "
             "it), fronts after a restart",
             f->settings.models_dir, m->file_name);
    m->file = file;
}

/* Is the model of this file in the list? One that was left out for its name is, too. */
static bool folder_has(const struct front *f, const char *name)
{
    for (int i = 0; i < f->models.n; i++) {
        const struct served *m = &f->served[i];
        struct models_file file;

        if (strcmp(m->file_name, name) != 0)
            continue;
        if (served_is_here(m))
            return true;
        file = models_state_of(f->settings.models_dir, name);
        if (m->n_missing < MODELS_MISSING && models_same_file(&file, &m->file))
            return true;
    }
    return false;
}

/* Serve the model of a new file. */
static void folder_add(struct front *f, const char *name)
{
    struct served *m = &f->served[f->models.n];

    if (f->models.n == f->models.cap) {
        log_error("front: model %s is not served: %d models have come since the start; restart the "
                  "fronts",
                  name, f->models.cap);
        f->folder_full = true;
        return;
    }
    if (served_add(&f->models, &f->source, name) != ERR_OK) {
        memset(m, 0, sizeof *m); /* without memory: the next look tries again */
        return;
    }
    f->models.n++;
    folder_show(f, m);
    if (m->why == NULL && served_is_here(m))
        log_info("front: model %s is served", name);
}

/* One look at the folder. */
static void folder_look(struct front *f, struct models *found)
{
    if (models_look(found, f->settings.models_dir) != ERR_OK)
        return; /* a folder that is replaced may be missing for a moment */
    for (int i = 0; i < f->models.n; i++) {
        if (served_is_here(&f->served[i]))
            folder_check(f, &f->served[i], found);
    }
    for (int i = 0; i < found->n && !f->folder_full; i++) {
        if (!folder_has(f, found->names[i]))
            folder_add(f, found->names[i]);
    }
}

static void *folder_run(void *front)
{
    struct front *f = front;
    struct models found = {.unusable = f->models.unusable}; /* it was logged */
    struct pollfd stop = {.fd = f->stop_fd, .events = POLLIN};

    while (poll(&stop, 1, MODELS_LOOK_US / 1000) <= 0)
        folder_look(f, &found);
    return NULL;
}

int folder_start(struct front *f)
{
    int error;

    if (f->settings.models_dir[0] == '\0')
        return ERR_OK;
    error = pthread_create(&f->folder_thread, NULL, folder_run, f);
    if (error == 0)
        return ERR_OK;
    log_error("front: cannot start a thread: %s", strerror(error));
    return ERR_IO;
}

void folder_end(struct front *f)
{
    uint64_t one = 1;

    if (f->settings.models_dir[0] == '\0')
        return;
    (void)!write(f->stop_fd, &one, sizeof one); /* an error of the streamer ends it, too */
    (void)pthread_join(f->folder_thread, NULL);
}
