/* Texts in the state file and the log. */

#ifndef DCMI_SIM_TEXT_H
#define DCMI_SIM_TEXT_H

#include <stddef.h>

/* Undo %XX; what does not fit is cut off. */
void text_decode(const char *text, char *out, size_t size);
/* Write %XX for what is not a plain character; the length, cut off to what fits. */
size_t text_encode(const char *text, char *out, size_t size);

#endif
