/* SPDX-License-Identifier: MIT */
/*
 * The record ring's scheme lockless (native/src/ring/reserve.c, ring/publish.c, ring/claims.c): producers reserve,
 * publish and commit, a consumer and a file server reap the dead; producers and the server are killed anywhere.
 *
 *     spin -a [-DFIRST=1] ring.pml && gcc -O2 -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c && ./pan -m100000
 *
 * Each record takes one unit of the ring, so its number is its position. Checked:
 *   - the producer position passes a record only when its header is in place, and never goes back
 *                                                                                  (assert in move_position)
 *   - no header is stored over another record's                                    (assert in store_header)
 *   - every record is passed once, as committed or as torn, and the counts agree   (asserts at the end)
 *   - the consumer always comes to the end: who waits is woken by what comes or by a death
 *                                                                                  (no invalid end state)
 * Of the order in which other CPUs see stores, what the protocol leaves unfenced is in it: that a producer looks for the
 * next entry before others see the position that it has stored. Left out: the rest of that order (each pair of accesses
 * that relies on one says so in the code), and the restartable sequences, of which only the last store is ever seen.
 */
#define PRODUCERS 2
#ifndef FIRST
#define FIRST 2 /* records of the first producer; the second one has one */
#endif
#define RING 3  /* units: one is never used */
#define READY 3 /* entries */
#define SERVER PRODUCERS
#define CONSUMER (PRODUCERS + 1)
#define NOBODY 255

mtype = { FREE, PENDING, TAKEN, REAPED, NOTHING, BUSY, COMMITTED, DISCARD };

byte tail, tail_name = NOBODY; /* {end, who}: read one after the other, changed at once */
byte position, numbered;      /* the kernel's producer position, and how many records lie before it */
byte unseen[PRODUCERS] = NOBODY; /* both of them, stored and not yet seen by others */
byte consumed;
byte ready[READY];
mtype header[RING] = NOTHING;
byte whose[RING] = NOBODY; /* ghost: the position that the header was stored for */

mtype state[PRODUCERS] = FREE; /* the claim's word: state and place change at once */
byte place[PRODUCERS];
byte torn[PRODUCERS];
byte reaper[PRODUCERS] = NOBODY;
bool owned[PRODUCERS] = true;

bool killed[PRODUCERS + 2], dead[PRODUCERS + 2], ended[PRODUCERS];
byte committed, seen, skipped; /* committed: ghost */

inline store_header(at, what)
{
	atomic {
		/* Nobody's that is still to be passed, or this record's own. */
		assert(whose[(at) % RING] == NOBODY || whose[(at) % RING] < consumed || whose[(at) % RING] == at);
		header[(at) % RING] = what;
		whose[(at) % RING] = at
	}
}

inline move_position(to)
{
	atomic {
		assert(position == to - 1 && whose[position % RING] == position);
		position = to
	}
}

/* Every store that one, or any, producer made before is seen. */
#define FENCED_BY(me) (unseen[me] == NOBODY)
#define FENCED (FENCED_BY(0) && FENCED_BY(1))

/* {tail, name} was read: mark the claim that it names as taken, if it is in question. */
inline help(end, name)
{
	end = tail;
	name = tail_name;
	if
	:: name != NOBODY ->
		atomic {
			if
			:: state[name] == PENDING && place[name] + 1 == end -> state[name] = TAKEN
			:: else
			fi
		}
	:: else
	fi
}

/* From the record at `from` on. */
inline follow(from, to)
{
	do
	:: to = ready[from % READY];
		if
		:: to == from + 1 ->
			atomic {
				if
				:: position == from && numbered == from ->
					numbered = to;
					move_position(to);
					from = to
				:: else ->
					if
					:: position > from -> from = to
					:: else -> break
					fi
				fi
			}
		:: else -> break
		fi
	od
}

/* In pass(), others see the two stores some time later; in the order in which they were made, like all others. */
inline pass(me, at, to)
{
	unseen[me] = at + 1;
	to = ready[(at + 1) % READY];
	FENCED_BY(me);
	if
	:: to == at + 2 ->
		at++;
		follow(at, to)
	:: else
	fi
}

inline defer(me, at, to)
{
	if
	:: position == at -> pass(me, at, to)
	:: true -> /* it takes too long */
		to = ready[(at + READY - 1) % READY];
		ready[at % READY] = at + 1;
		if
		:: at > 0 && to == at
		:: else -> FENCED /* membarrier */
		fi;
		follow(at, to)
	fi
}

/* A reaper fences: it does not matter when others see what it stores. */
inline publish_dead(at, now)
{
	now = ready[at % READY];
	if
	:: now != at + 1 && position == at ->
		numbered = at + 1;
		move_position(at + 1)
	:: now != at + 1 && position < at ->
		atomic {
			if
			:: ready[at % READY] == now -> ready[at % READY] = at + 1
			:: else
			fi
		}
	:: else
	fi;
	FENCED;
	follow(at, now)
}

inline reap_record(c, at, now)
{
	now = ready[at % READY];
	if
	:: now == at + 1 || position > at
	:: else -> store_header(at, BUSY)
	fi;
	publish_dead(at, now);
	at = place[c] + 1;
	follow(at, now);
	at = place[c];
	if
	:: header[at % RING] == BUSY ->
		if
		:: consumed <= at ->
			atomic {
				if
				:: state[c] == TAKEN ->
					state[c] = REAPED;
					torn[c]++
				:: else
				fi
			}
			store_header(at, DISCARD)
		:: else
		fi
	:: else
	fi
}

/* By `me`, of a producer that may have died. */
inline reap(me, c, at, now)
{
	if
	:: dead[c] && owned[c] ->
		atomic {
			if
			:: reaper[c] == NOBODY || dead[reaper[c]] -> reaper[c] = me
			:: else
			fi
		}
		if
		:: reaper[c] == me ->
			if
			:: owned[c] ->
				help(at, now);
				at = place[c];
				if
				:: state[c] == TAKEN || state[c] == REAPED -> reap_record(c, at, now)
				:: else
				fi;
				state[c] = FREE;
				owned[c] = false
			:: else
			fi;
			reaper[c] = NOBODY
		:: else
		fi
	:: else
	fi;
	at = 0;
	now = 0
}

proctype producer(byte me)
{
	byte end, name, at, to, n;
	bool turn;

	{
		do
		:: n == (me -> 1 : FIRST) -> break
		:: else ->
			end = tail;
			name = tail_name;
			help(at, to);
			turn = position == end;
			if
			:: end + 1 - consumed >= RING || (!turn && end + 1 - numbered >= READY) ->
				n++ /* refused */
			:: else ->
				atomic { place[me] = end; state[me] = PENDING }
				atomic {
					if
					:: tail == end && tail_name == name -> tail = end + 1; tail_name = me; at = end
					:: else -> at = NOBODY
					fi
				}
				name = 0;
				if
				:: at == NOBODY -> state[me] = FREE
				:: else ->
					store_header(at, BUSY);
					end = at;
					if
					:: turn -> pass(me, at, to)
					:: else -> defer(me, at, to)
					fi;
					at = end;
					/* the record is filled */
					atomic { store_header(at, COMMITTED); committed++ }
					state[me] = FREE;
					n++
				fi;
				at = 0;
				to = 0
			fi;
			turn = false
		od
	} unless { killed[me] };
	/* Who is seen to be dead has stored all that it has. */
	FENCED_BY(me);
	atomic {
		dead[me] = killed[me];
		ended[me] = true
	}
}

#define ALL_ENDED (ended[0] && ended[1])
/* What it has reserved is for others to end. */
#define LEFT(c) (dead[c] && owned[c])

/* What producers have stored becomes seen. */
proctype memory()
{
	do
	:: unseen[0] != NOBODY -> numbered = unseen[0]; atomic { move_position(unseen[0]); unseen[0] = NOBODY }
	:: unseen[1] != NOBODY -> numbered = unseen[1]; atomic { move_position(unseen[1]); unseen[1] = NOBODY }
	:: ALL_ENDED && FENCED -> break
	od
}

proctype server()
{
	byte at, now;

	{
		do
		:: LEFT(0) -> reap(SERVER, 0, at, now)
		:: LEFT(1) -> reap(SERVER, 1, at, now)
		:: ALL_ENDED && !LEFT(0) && !LEFT(1) -> break
		od
	} unless { killed[SERVER] };
	dead[SERVER] = killed[SERVER]
}

proctype consumer()
{
	byte at, now;

	do
	:: position > consumed ->
		assert(whose[consumed % RING] == consumed);
		if
		:: header[consumed % RING] == COMMITTED -> atomic { seen++; consumed++ }
		:: header[consumed % RING] == DISCARD -> atomic { skipped++; consumed++ }
		:: header[consumed % RING] == BUSY && LEFT(0) -> reap(CONSUMER, 0, at, now)
		:: header[consumed % RING] == BUSY && LEFT(1) -> reap(CONSUMER, 1, at, now)
		fi
	:: position == consumed && tail > consumed && LEFT(0) -> reap(CONSUMER, 0, at, now)
	:: position == consumed && tail > consumed && LEFT(1) -> reap(CONSUMER, 1, at, now)
	:: position == consumed && tail == consumed && ALL_ENDED -> break
	od;
	assert(seen == committed && skipped == torn[0] + torn[1] && seen + skipped == tail)
}

/* The first producer, and the server or, in the long form, the second producer. Who has ended before was spared. */
proctype killer()
{
	killed[0] = true;
#if FIRST > 1
	if
	:: killed[1] = true
	:: killed[SERVER] = true
	fi
#else
	killed[SERVER] = true
#endif
}

init
{
	atomic {
		run producer(0);
		run producer(1);
		run memory();
		run server();
		run consumer();
		run killer()
	}
}
