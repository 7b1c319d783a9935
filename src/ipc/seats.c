/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy, and the table in a file.
 *
 * Locks are those of open file descriptions (F_OFD_SETLK): byte i for row i, and one byte behind
 * them for decisions. */
#include "ipc/seats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define SEATS_MAGIC UINT64_C(0x3273746165735171) /* and the number of the layout */
#define SEATS_FILE  "seats"

struct seats_table {
    _Atomic uint64_t magic; /* 0: not written yet */
    struct seat rows[SEATS_MAX];
};

struct seats {
    int fd;
    struct seats_table *table; /* read-only for an observer */
    int own;                   /* row; -1: an observer */
};

/* --- the policy ------------------------------------------------------------------------------- */

/* Is row a better choice than row b, to be asked to fall asleep? */
static bool seats_is_before(const struct seat_view *a, const struct seat_view *b)
{
    if ((a->n_reqs == 0) != (b->n_reqs == 0))
        return a->n_reqs == 0;
    if (a->n_reqs == 0)
        return a->used_us < b->used_us;
    return a->since_us < b->since_us;
}

/* The engine to ask, or -1. */
static int seats_victim(const struct seat_view *rows, int n, uint64_t now_us)
{
    int best = -1;

    for (int i = 0; i < n; i++) {
        const struct seat_view *row = &rows[i];

        if (!row->alive || row->state != SEAT_HELD || row->asked)
            continue;
        if (row->n_reqs > 0 && now_us - row->since_us < SEATS_SLICE_US)
            continue;
        if (best == -1 || seats_is_before(row, &rows[best]))
            best = i;
    }
    return best;
}

/* A number of engines and their use. */
struct seats_sum {
    int n;
    uint64_t bytes;
};

static void seats_add(struct seats_sum *sum, const struct seat_view *row,
                      const struct seat_room *room)
{
    bool known = row->bytes > 0 && row->bytes < room->bytes_max;

    sum->n++;
    sum->bytes += known ? row->bytes : room->bytes_max;
}

/* Are these engines within the bounds? */
static bool seats_fit(const struct seats_sum *sum, const struct seat_room *room)
{
    return (room->n_max == 0 || sum->n <= room->n_max) &&
           (room->bytes_max == 0 || sum->bytes <= room->bytes_max);
}

/* Does row i wait since before row own? */
static bool seats_waits_before(const struct seat_view *rows, int i, int own)
{
    return rows[i].state == SEAT_WAITING && (rows[i].wanted_us < rows[own].wanted_us ||
                                             (rows[i].wanted_us == rows[own].wanted_us && i < own));
}

bool seats_decide(const struct seat_view *rows, int n, int own, const struct seat_room *room,
                  uint64_t now_us, int *ask)
{
    /* The own engine and all before it; the same without those that were asked to sleep. */
    struct seats_sum now = {0}, soon = {0};

    must(own >= 0 && own < n && (room->n_max > 0 || room->bytes_max > 0));
    *ask = -1;
    for (int i = 0; i < n; i++) {
        bool holds = rows[i].state == SEAT_HELD;

        if (i != own && (!rows[i].alive || (!holds && !seats_waits_before(rows, i, own))))
            continue;
        seats_add(&now, &rows[i], room);
        if (i == own || !holds || !rows[i].asked)
            seats_add(&soon, &rows[i], room);
    }
    if (seats_fit(&now, room))
        return true;
    if (!seats_fit(&soon, room))
        *ask = seats_victim(rows, n, now_us);
    return false;
}

/* --- the table -------------------------------------------------------------------------------- */

/* Lock or unlock a byte. False: another has it. */
static bool seats_lock(int fd, int byte, short type, bool waits)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int rc;

    do
        rc = fcntl(fd, waits ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
    while (rc == -1 && errno == EINTR);
    return rc == 0;
}

/* Has another process locked this row? */
static bool seats_is_alive(int fd, int row)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = row, .l_len = 1};

    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void seats_enter(const struct seats *s)
{
    (void)seats_lock(s->fd, SEATS_MAX, F_WRLCK, true); /* fails with broken arguments only */
}

static void seats_leave(const struct seats *s)
{
    (void)seats_lock(s->fd, SEATS_MAX, F_UNLCK, false);
}

/* Copy all rows. */
static void seats_look(const struct seats *s, struct seat_view *rows)
{
    for (int i = 0; i < SEATS_MAX; i++) {
        struct seat *row = &s->table->rows[i];

        rows[i] = (struct seat_view){
            .alive = row->socket[0] != '\0' && (i == s->own || seats_is_alive(s->fd, i)),
            .state = (enum seat_state)atomic_load(&row->state),
            .asked = atomic_load(&row->asked) != 0,
            .n_reqs = atomic_load(&row->n_reqs),
            .used_us = atomic_load(&row->used_us),
            .since_us = atomic_load(&row->since_us),
            .wanted_us = atomic_load(&row->wanted_us),
            .bytes = atomic_load(&row->bytes),
        };
    }
}

/* A row for a socket: its earlier one, or any that no process has. The table is locked. */
static int seats_claim(struct seats *s, const char *socket, uint64_t settings)
{
    struct seat *rows = s->table->rows;
    uint64_t bytes = 0;
    int place = -1;

    for (int i = 0; i < SEATS_MAX; i++) {
        bool is_own = strncmp(rows[i].socket, socket, SEATS_PATH) == 0;

        /* Rows of engines that have ended are taken last: they keep what those have told. */
        bool is_better =
            is_own || place == -1 || (rows[i].socket[0] == '\0' && rows[place].socket[0] != '\0');

        if (is_better && !seats_is_alive(s->fd, i))
            place = i;
        if (is_own && place == i)
            break;
    }
    if (place == -1 || !seats_lock(s->fd, place, F_WRLCK, false))
        return ERR_IN_USE;
    if (strncmp(rows[place].socket, socket, SEATS_PATH) == 0 && rows[place].settings == settings)
        bytes = atomic_load(&rows[place].bytes);
    memset(&rows[place], 0, sizeof rows[place]);
    rows[place].settings = settings;
    atomic_store(&rows[place].bytes, bytes);
    (void)snprintf(rows[place].socket, SEATS_PATH, "%s", socket);
    s->own = place;
    return ERR_OK;
}

/* Map the file. A file of another build is not touched. */
static int seats_map(struct seats *s, const char *path, bool writes)
{
    struct stat st;
    void *memory;

    s->fd = open(path, (writes ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (s->fd == -1)
        return errno == ENOENT ? ERR_NOT_FOUND : ERR_IO;
    if (writes) {
        (void)fchmod(s->fd, 0640); /* the group of the socket: the fronts read it */
        seats_enter(s);
        if (fstat(s->fd, &st) == 0 && st.st_size == 0 &&
            ftruncate(s->fd, (off_t)sizeof *s->table) == -1)
            return ERR_IO;
    }
    if (fstat(s->fd, &st) == -1)
        return ERR_IO;
    if (st.st_size == 0)
        return ERR_NOT_FOUND;
    if (st.st_size != (off_t)sizeof *s->table)
        return ERR_VERSION;
    memory = mmap(NULL, sizeof *s->table, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                  s->fd, 0);
    if (memory == MAP_FAILED)
        return ERR_NO_MEMORY;
    s->table = memory;
    if (writes && atomic_load(&s->table->magic) == 0)
        atomic_store(&s->table->magic, SEATS_MAGIC);
    return atomic_load(&s->table->magic) == SEATS_MAGIC ? ERR_OK : ERR_VERSION;
}

static void seats_path(char *path, size_t cap, const char *folder)
{
    (void)snprintf(path, cap, "%s/" SEATS_FILE, folder);
}

/* Open for an engine (socket) or an observer (NULL). */
static int seats_open_as(struct seats **out, const char *folder, const char *socket,
                         uint64_t settings)
{
    struct seats *s = mem_zalloc(sizeof *s);
    char path[4096];
    int rc;

    if (s == NULL)
        return ERR_NO_MEMORY;
    s->fd = -1;
    s->own = -1;
    seats_path(path, sizeof path, folder);
    rc = seats_map(s, path, socket != NULL);
    if (rc == ERR_OK && socket != NULL)
        rc = seats_claim(s, socket, settings);
    if (s->fd != -1 && socket != NULL)
        seats_leave(s);
    if (rc != ERR_OK) {
        if (socket != NULL)
            log_error("seats: %s: %s", path, err_sentence(rc));
        seats_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

int seats_open(struct seats **out, const char *folder, const char *socket, uint64_t settings)
{
    return seats_open_as(out, folder, socket, settings);
}

int seats_mark(const char *folder)
{
    char path[4096];
    int fd;

    seats_path(path, sizeof path, folder);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd == -1)
        return ERR_IO;
    (void)close(fd);
    return ERR_OK;
}

bool seats_are_marked(const char *folder)
{
    char path[4096];

    seats_path(path, sizeof path, folder);
    return access(path, F_OK) == 0;
}

int seats_observe(struct seats **out, const char *folder)
{
    return seats_open_as(out, folder, NULL, 0);
}

/* The locks go with the descriptor. */
void seats_close(struct seats *s)
{
    if (s == NULL)
        return;
    if (s->table != NULL)
        (void)munmap(s->table, sizeof *s->table);
    if (s->fd != -1)
        (void)close(s->fd);
    mem_free(s);
}

/* --- the own row ------------------------------------------------------------------------------ */

static struct seat *seats_own(const struct seats *s)
{
    must(s->own >= 0);
    return &s->table->rows[s->own];
}

/* Wait for a seat. The table is locked. */
static void seats_want(struct seats *s, uint64_t now_us)
{
    struct seat *own = seats_own(s);

    if (atomic_load(&own->state) == SEAT_WAITING)
        return;
    atomic_store(&own->wanted_us, now_us);
    atomic_store(&own->state, SEAT_WAITING);
}

int seats_take(struct seats *s, const struct seat_room *room, uint64_t now_us)
{
    struct seat *own = seats_own(s);
    struct seat_view rows[SEATS_MAX];
    int ask = -1;
    bool takes = true;

    if (atomic_load(&own->state) == SEAT_HELD)
        return ERR_OK;
    seats_enter(s);
    seats_want(s, now_us);
    if (room->n_max > 0 || room->bytes_max > 0) {
        seats_look(s, rows);
        takes = seats_decide(rows, SEATS_MAX, s->own, room, now_us, &ask);
    }
    if (takes) {
        atomic_store(&own->asked, 0);
        atomic_store(&own->since_us, now_us);
        atomic_store(&own->used_us, now_us);
        atomic_store(&own->state, SEAT_HELD);
    }
    if (ask >= 0)
        atomic_store(&s->table->rows[ask].asked, 1);
    seats_leave(s);
    return takes ? ERR_OK : ERR_AGAIN;
}

/* As if there were no more seats than are taken. */
void seats_press(struct seats *s, uint64_t now_us)
{
    struct seat_view rows[SEATS_MAX];
    struct seat_room room = {0};
    int ask = -1;

    seats_enter(s);
    atomic_store(&seats_own(s)->asked, 0);
    seats_want(s, now_us);
    seats_look(s, rows);
    for (int i = 0; i < SEATS_MAX; i++)
        room.n_max += i != s->own && rows[i].alive && rows[i].state == SEAT_HELD;
    if (room.n_max > 0 && !seats_decide(rows, SEATS_MAX, s->own, &room, now_us, &ask) && ask >= 0)
        atomic_store(&s->table->rows[ask].asked, 1);
    seats_leave(s);
}

void seats_tell(struct seats *s, uint64_t bytes)
{
    atomic_store(&seats_own(s)->bytes, bytes);
}

uint64_t seats_told(const struct seats *s)
{
    return atomic_load(&seats_own(s)->bytes);
}

void seats_give(struct seats *s, enum seat_state state)
{
    must(state == SEAT_ASLEEP || state == SEAT_STARTING);
    seats_enter(s);
    atomic_store(&seats_own(s)->asked, 0);
    atomic_store(&seats_own(s)->state, state);
    seats_leave(s);
}

bool seats_asked(const struct seats *s)
{
    return atomic_load_explicit(&seats_own(s)->asked, memory_order_relaxed) != 0;
}

void seats_refuse(struct seats *s)
{
    atomic_store(&seats_own(s)->asked, 0);
}

void seats_ready(struct seats *s)
{
    atomic_store(&seats_own(s)->ready, 1);
}

void seats_unready(struct seats *s)
{
    atomic_store(&seats_own(s)->ready, 0);
}

void seats_note(struct seats *s, uint32_t n_reqs, uint64_t used_us)
{
    atomic_store_explicit(&seats_own(s)->n_reqs, n_reqs, memory_order_relaxed);
    atomic_store_explicit(&seats_own(s)->used_us, used_us, memory_order_relaxed);
}

bool seats_find(const struct seats *s, const char *socket, enum seat_state *state, bool *ready)
{
    for (int i = 0; i < SEATS_MAX; i++) {
        struct seat *row = &s->table->rows[i];

        if (strncmp(row->socket, socket, SEATS_PATH) != 0 || !seats_is_alive(s->fd, i))
            continue;
        *state = (enum seat_state)atomic_load(&row->state);
        *ready = atomic_load(&row->ready) != 0;
        return true;
    }
    return false;
}
