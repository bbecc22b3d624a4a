/* TLS between a client and its link. Thread: the clients'; begin and end before and after all. */
#pragma once

#include "tests/simulation/sim.h"

/* Files "certificate" and "key" in the folder. */
void sim_secure_begin(void);
void sim_secure_end(void);

struct sim_secure;
struct sim_secure *sim_secure_new(void);
struct sim_secure *sim_secure_free(struct sim_secure *secure);

/* As those of links, about what is inside the records. A write of 0 may mean that the handshake is
 * not over. */
size_t sim_secure_write(struct sim_secure *secure, struct sim_link *link, const uint8_t *bytes,
                        size_t size);
size_t sim_secure_read(struct sim_secure *secure, struct sim_link *link, uint8_t *bytes,
                       size_t size);
/* Sends records that are ready, as far as there is room. */
void sim_secure_flush(struct sim_secure *secure, struct sim_link *link);
/* Says that nothing more comes. False: there was no room for that yet, say it again. */
bool sim_secure_end_stream(struct sim_secure *secure, struct sim_link *link);
/* With room on the link there would be something to write. */
bool sim_secure_can_write(const struct sim_secure *secure, bool has_bytes);
/* The last read brought something: there may be more, whatever the link has. */
bool sim_secure_has_more(const struct sim_secure *secure);
/* Of a record, or of the handshake, a part has come. */
bool sim_secure_has_part(const struct sim_secure *secure);
/* It says nothing more, in the middle of what it said; cuts: and breaks the connection. */
bool sim_secure_is_stalled(const struct sim_secure *secure, bool *ret_cuts);
