/* cc -O2 -o mandelbrot mandelbrot.c $(pkg-config --cflags --libs relayfs) */
#include <pthread.h>
#include <relayfs/trace.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 640, HEIGHT = 480, ROWS = 40, N_BANDS = HEIGHT / ROWS, MOST_STEPS = 400, MOST_THREADS = 64 };

/* What takes time, a number, and an event: slices, a curve, and an instant in a viewer such as ui.perfetto.dev. */
RELAY_TRACE_SPAN(mandel, picture, (u32, number))
RELAY_TRACE_SPAN(mandel, draw)
RELAY_TRACE_SPAN(mandel, write)
RELAY_TRACE_SPAN(mandel, band, (u32, first_row))
RELAY_TRACE_SPAN(mandel, iterate)
RELAY_TRACE_SPAN(mandel, shade)
RELAY_TRACE_COUNTER(mandel, bands_left, u32)
RELAY_TRACE_EVENT_LEVEL(INFO, mandel, inside, (u32, first_row), (u32, points))

static unsigned char pixels[HEIGHT][WIDTH];
static double step = 0.005; /* between the points */
static atomic_uint next_band;
static pthread_barrier_t begin, end;

static unsigned count_steps(double re, double im)
{
	double x = 0, y = 0;
	unsigned steps = 0;
	for (; steps < MOST_STEPS && x * x + y * y < 4; steps++) {
		double next = x * x - y * y + re;
		y = 2 * x * y + im;
		x = next;
	}
	return steps;
}

static void iterate(unsigned first_row, unsigned (*steps)[WIDTH])
{
	RELAY_TRACE_SCOPE(mandel, iterate)();
	unsigned inside = 0;
	for (unsigned row = 0; row < ROWS; row++)
		for (unsigned column = 0; column < WIDTH; column++) {
			double right = column - WIDTH / 2.0, down = first_row + row - HEIGHT / 2.0;
			steps[row][column] = count_steps(-0.745 + step * right, 0.113 + step * down);
			inside += steps[row][column] == MOST_STEPS;
		}
	trace_mandel_inside(first_row, inside);
}

static void shade(unsigned first_row, unsigned (*steps)[WIDTH])
{
	RELAY_TRACE_SCOPE(mandel, shade)();
	for (unsigned row = 0; row < ROWS; row++)
		for (unsigned column = 0; column < WIDTH; column++) {
			unsigned n = steps[row][column];
			pixels[first_row + row][column] = n == MOST_STEPS ? 0 : (unsigned char)(255 * n / (n + 20));
		}
}

static void *draw_bands(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&begin);
		for (unsigned band; (band = atomic_fetch_add(&next_band, 1)) < N_BANDS;) {
			RELAY_TRACE_SCOPE(mandel, band)(band * ROWS);
			unsigned steps[ROWS][WIDTH];
			iterate(band * ROWS, steps);
			shade(band * ROWS, steps);
			trace_mandel_bands_left(N_BANDS - 1 - band);
		}
		pthread_barrier_wait(&end);
	}
	return unused;
}

/* Write N pictures of the Mandelbrot set to the standard output, each closer than the one before: mandelbrot N THREADS */
int main(int argc, char **argv)
{
	unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 1, n_threads = argc > 2 ? (unsigned)atoi(argv[2]) : 2;
	if (n_threads < 1 || n_threads > MOST_THREADS)
		return 2;
	pthread_barrier_init(&begin, NULL, n_threads + 1);
	pthread_barrier_init(&end, NULL, n_threads + 1);
	for (unsigned i = 0; i < n_threads; i++)
		if (pthread_create(&(pthread_t){0}, NULL, draw_bands, NULL))
			return 1;
	for (unsigned number = 0; number < n; number++, step /= 2) {
		RELAY_TRACE_SCOPE(mandel, picture)(number);
		trace_mandel_draw();
		atomic_store(&next_band, 0);
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&end);
		trace_mandel_draw_end();
		RELAY_TRACE_SCOPE(mandel, write)();
		printf("P5 %d %d 255\n", WIDTH, HEIGHT);
		fwrite(pixels, sizeof(pixels), 1, stdout);
		if (fflush(stdout))
			return 1;
	}
	return 0;
}
