/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "buffer/deliveries.h"

#include "base/owner.h"
#include "buffer/head.h"
#include "buffer/subbuf_start.h"
#include "buffer/wake.h"

static uint64_t maker_of(const struct rchan_buf *buf)
{
	/* Relaxed: a maker is stored before the channel is used, or never. */
	return __atomic_load_n(&buf->control->maker, __ATOMIC_RELAXED);
}

bool relay_deliveries_wanted(const struct rchan_buf *buf)
{
	return buf->geometry.delivery == RELAY_PACKET && buf->mode == RELAY_CALLBACK && maker_of(buf);
}

static bool has_note_room(const struct relay_control *control)
{
	/* Pairs with the release in relay_deliveries_take(): the note was read before its place is used again. */
	uint64_t told = __atomic_load_n(&control->notes_told, __ATOMIC_ACQUIRE);
	return control->notes_added - told < RELAY_N_NOTES;
}

bool relay_deliveries_full(const struct rchan_buf *buf)
{
	return !has_note_room(buf->control) && relay_owner_alive(maker_of(buf));
}

void relay_deliveries_add(struct rchan_buf *buf, uint64_t pos, uint64_t length)
{
	struct relay_control *control = buf->control;
	if (!has_note_room(control))
		return;
	struct relay_note *note = &control->notes[control->notes_added % RELAY_N_NOTES];
	note->position = pos;
	note->length = length;
	/* Pairs with the acquire in relay_deliveries_take(): the note before the count. */
	__atomic_store_n(&control->notes_added, control->notes_added + 1, __ATOMIC_RELEASE);
	relay_wake_maker(buf);
}

/* The record of a note; NULL if it is overwritten, or the note is damaged. */
static char *find_noted(const struct rchan_buf *buf, const struct relay_note *note)
{
	uint64_t head, second;
	if (relay_head(buf, &head, &second) || !relay_pos_valid(buf, note->position) ||
	    note->length > buf->subbuf_size - relay_pos_offset(buf, note->position) ||
	    relay_is_lapped(buf, head, relay_pos_number(buf, note->position)))
		return NULL;
	return (char *)relay_pos_data(buf, note->position);
}

bool relay_deliveries_take(struct rchan_buf *buf, char **data, uint32_t *length)
{
	struct relay_control *control = buf->control;
	/* Pairs with the release in relay_deliveries_add(). */
	uint64_t added = __atomic_load_n(&control->notes_added, __ATOMIC_ACQUIRE), told = control->notes_told;
	if (added == told)
		return false;
	/* If the counts contradict each other, because shared memory is damaged, skip the
	 * notes that cannot be there. */
	if (added - told > RELAY_N_NOTES)
		told = added - RELAY_N_NOTES;
	struct relay_note note = control->notes[told % RELAY_N_NOTES];
	/* Pairs with the acquire in has_note_room(): the note was read before. */
	__atomic_store_n(&control->notes_told, told + 1, __ATOMIC_RELEASE);
	*data = find_noted(buf, &note);
	*length = (uint32_t)note.length;
	return true;
}
