/* Texts as the words of a line: %XX for a blank, a control character, % and what is not ASCII. */

#include "text.h"

#include <stdio.h>

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

void text_decode(const char *text, char *out, size_t size)
{
    size_t used = 0;

    for (; *text && used + 1 < size; text++) {
        if (*text == '%' && hex_digit(text[1]) >= 0 && hex_digit(text[2]) >= 0) {
            out[used++] = (char)(hex_digit(text[1]) * 16 + hex_digit(text[2]));
            text += 2;
        } else {
            out[used++] = *text;
        }
    }
    out[used] = 0;
}

size_t text_encode(const char *text, char *out, size_t size)
{
    size_t used = 0;

    for (; *text && used + 4 <= size; text++) {
        unsigned char byte = (unsigned char)*text;

        used += (size_t)sprintf(out + used, byte <= ' ' || byte >= 127 || byte == '%' ? "%%%02X" : "%c", byte);
    }
    out[used] = 0;
    return used;
}
