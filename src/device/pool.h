/* SPDX-License-Identifier: Apache-2.0
 *
 * A few threads that share the tasks of one job at a time. Used by the cpu device for every
 * operation, and while a model is loaded. */
#ifndef QUIRE_DEVICE_POOL_H
#define QUIRE_DEVICE_POOL_H

#include "base/err.h"

struct pool;

/* One task of a job. worker is 0 .. pool_width() - 1, and no two concurrent tasks have the same, so
 * a job may keep scratch memory per worker. */
typedef void pool_task(void *job, int task, int worker);

/* Open a pool of n_threads threads, including the caller's; 0 means one per core, at most
 * POOL_THREADS_MAX. ERR_NO_MEMORY (logged) if threads or memory are missing. */
#define POOL_THREADS_MAX 256
int pool_open(struct pool **out, int n_threads) ERR_CHECKED;
void pool_close(struct pool *p); /* NULL is fine */

int pool_cores(void); /* cores that this process may use */
int pool_width(const struct pool *p);

/* Run tasks 0 .. n_tasks - 1 and return when all are done. The caller works as well; idle workers
 * join as they wake. Which worker runs a task is not defined, so a task's result must not depend on
 * it. One caller at a time. */
void pool_run(struct pool *p, pool_task *task, void *job, int n_tasks);

#endif
