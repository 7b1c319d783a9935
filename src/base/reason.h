/* SPDX-License-Identifier: Apache-2.0
 *
 * The reason for which a request is refused, as the client gets it. The function that refuses
 * writes it; its caller makes it the answer. */
#ifndef QUIRE_BASE_REASON_H
#define QUIRE_BASE_REASON_H

#define REASON_BYTES 640

struct reason {
    char text[REASON_BYTES]; /* a sentence; "": that of the error in err.def */
    const char *param;       /* the field it is about, or NULL */
};

#endif
