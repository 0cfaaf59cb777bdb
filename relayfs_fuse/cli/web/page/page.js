"use strict";
/*
 * Shows what /metrics tells, with rates, and follows a channel or trace through /events. If the server does not answer,
 * the page says so, and tries again until it does. tests/fuse/cli/test_serve_page.py runs the functions before start().
 */

const POLL_MS = 2000, KEPT = 60, LINES_MAX = 500, RETRY_MS = 2000;
const UNESCAPED = { "\\": "\\", "n": "\n", "\"": "\"" };

/** Read the text format: an array of {name, labels, value}. */
function parse_metrics(text) {
	const samples = [];
	for (const line of text.split("\n")) {
		const found = /^([A-Za-z_][\w]*)(?:\{(.*)\})? (\S+)$/.exec(line);
		if (!found)
			continue;
		const labels = {};
		for (const label of (found[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
			labels[label[1]] = label[2].replace(/\\(.)/g, (_, char) => UNESCAPED[char] || char);
		samples.push({ name: found[1], labels, value: Number(found[3]) });
	}
	return samples;
}

/** Put the samples whose names begin so into one object for each value of a label: {name: {rest: value or {...}}}. */
function by_label(samples, prefix, label) {
	const objects = new Map();
	for (const one of samples) {
		if (!one.name.startsWith(prefix) || !(label in one.labels))
			continue;
		const name = one.labels[label], rest = one.name.slice(prefix.length);
		if (!objects.has(name))
			objects.set(name, { name, lost: {} });
		const object = objects.get(name);
		if ("cause" in one.labels)
			object.lost[one.labels.cause] = one.value;
		else if ("state" in one.labels)
			object.state = one.labels.state;
		else
			object[rest] = one.value;
	}
	return [...objects.values()].sort((a, b) => a.name < b.name ? -1 : 1);
}

/** Cut a text of server-sent events into messages {type, data}; return them, and the rest, which is not complete yet. */
function parse_events(text) {
	const parts = text.split("\n\n"), rest = parts.pop();
	const messages = [];
	for (const part of parts) {
		const message = { type: "message", data: "" };
		for (const line of part.split("\n")) {
			if (line.startsWith("event: "))
				message.type = line.slice(7);
			else if (line.startsWith("data: "))
				message.data = line.slice(6);
		}
		if (message.data)
			messages.push(message);
	}
	return { messages, rest };
}

/** Return the changes per second of numbers with times in ms; of counts that began anew, nothing. */
function rates(kept) {
	const found = [];
	for (let i = 1; i < kept.length; i++) {
		const [then, before] = kept[i - 1], [now, value] = kept[i];
		if (value >= before && now > then)
			found.push((value - before) * 1000 / (now - then));
	}
	return found;
}

/** Write a number briefly. */
function brief(value) {
	if (value === undefined || Number.isNaN(value))
		return "unknown";
	for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
		if (Math.abs(value) >= 10 * size)
			return (value / size).toFixed(1) + unit;
	return Number.isInteger(value) ? String(value) : value.toFixed(1);
}

/** Return the points of a line, in a box of 100 to 20. */
function points(values) {
	const most = Math.max(...values, 1e-9);
	return values.map((value, i) => `${(100 - 100 * (values.length - 1 - i) / (KEPT - 1)).toFixed(1)},${(20 - 20 * value / most).toFixed(1)}`).join(" ");
}

/** Write one message of /events as a line. */
function line_of(message) {
	const data = JSON.parse(message.data);
	switch (message.type) {
	case "message": return message.data;
	case "missed": return `--- ${data.lines} lines are missing here: this page was too slow`;
	case "said": return `--- ${data.text}`;
	case "end": return `--- ${data.why}`;
	default: return null;
	}
}

// --- what the browser shows ---

let token, kept = new Map(), tail = null;

function at(path, parameters = {}) {
	const query = new URLSearchParams(token ? { ...parameters, token } : parameters).toString();
	return query ? `${path}?${query}` : path;
}

function element(name, text, parent) {
	const made = document.createElement(name);
	made.textContent = text;
	parent.append(made);
	return made;
}

function cell(row, text, classes = "") {
	const made = element("td", text, row);
	made.className = classes;
	return made;
}

function line(row, values) {
	const space = "http://www.w3.org/2000/svg";
	const svg = document.createElementNS(space, "svg"), drawn = document.createElementNS(space, "polyline");
	svg.setAttribute("viewBox", "0 0 100 20");
	svg.setAttribute("preserveAspectRatio", "none");
	drawn.setAttribute("points", points(values));
	svg.append(drawn);
	cell(row, "").append(svg);
}

function count(row, key, value, seen) {
	cell(row, brief(value), "number");
	seen.add(key);
	if (!kept.has(key))
		kept.set(key, []);
	const series = kept.get(key);
	if (value !== undefined)
		series.push([performance.now(), value]);
	series.splice(0, series.length - KEPT);
	const found = rates(series);
	cell(row, found.length ? `${brief(found[found.length - 1])}/s` : "", "number");
	line(row, found);
}

function meter(row, ratio) {
	const made = document.createElement("meter"), into = cell(row, "");
	if (ratio === undefined)
		return;
	made.value = ratio;
	made.high = 0.9;
	into.append(made, ` ${Math.round(100 * ratio)}%`);
}

function lost(row, causes) {
	const some = Object.entries(causes).filter(([, n]) => n > 0);
	const text = some.map(([cause, n]) => `${cause.replace("_", " ")} ${brief(n)}`).join(", ");
	cell(row, text || "0", some.length ? "bad" : "");
}

function buffers(row, one) {
	cell(row, brief(one.unread_bytes), "number");
	meter(row, one.fullest_buffer_ratio);
	lost(row, one.lost);
}

function fill(id, objects, make) {
	const body = document.querySelector(`#${id} tbody`);
	body.replaceChildren();
	for (const object of objects) {
		const row = element("tr", "", body);
		cell(row, object.name);
		make(row, object);
	}
	if (!objects.length)
		cell(element("tr", "", body), "none");
}

function actions(row, sort, name) {
	const into = cell(row, ""), button = element("button", "Follow", into);
	button.type = "button";
	button.addEventListener("click", () => follow(sort, name));
	if (sort === "trace")
		for (const [path, text] of [["snapshot", "snapshot"], ["trace.pftrace", "Perfetto trace"]]) {
			into.append(" ");
			element("a", text, into).href = at(path, { trace: name });
		}
}

function show(samples) {
	const seen = new Set();
	fill("channels", by_label(samples, "relayfs_channel_", "channel"), (row, one) => {
		cell(row, one.state, one.state === "ok" ? "" : "bad");
		count(row, `channel ${one.name}`, one.records_total, seen);
		cell(row, brief(one.written_bytes_total), "number");
		buffers(row, one);
		actions(row, "channel", one.name);
	});
	fill("traces", by_label(samples, "relayfs_trace_", "trace"), (row, one) => {
		cell(row, one.state);
		count(row, `trace ${one.name}`, one.present_events, seen);
		cell(row, brief(one.processes), "number");
		buffers(row, one);
		actions(row, "trace", one.name);
	});
	const counters = samples.filter((one) => "name" in one.labels);
	fill("counters", counters.map((one) => ({ name: one.labels.name, value: one.value })), (row, one) =>
		count(row, `counter ${one.name}`, one.value, seen));
	for (const key of kept.keys())
		if (!seen.has(key))
			kept.delete(key);
}

function say(id, text, is_bad = false) {
	const place = document.getElementById(id);
	place.textContent = text;
	place.className = is_bad ? "bad" : "";
}

function ask(path, parameters, options = {}) {
	const headers = { Accept: "text/plain;version=0.0.4", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
	const query = new URLSearchParams(parameters).toString();
	return fetch(query ? `${path}?${query}` : path, { cache: "no-store", headers, ...options });
}

async function poll() {
	let since = null;
	for (;;) {
		try {
			const answer = await ask("metrics", {}, { signal: AbortSignal.timeout(5 * POLL_MS) });
			const text = await answer.text();
			if (!answer.ok)
				throw new Error(`${answer.status}: ${text.trim()}`);
			const samples = parse_metrics(text);
			show(samples);
			const skipped = samples.find((one) => one.name === "relayfs_serve_skipped");
			const missing = skipped && skipped.value ? `; ${skipped.value} channels and traces could not be read in time` : "";
			say("state", `as of ${new Date().toLocaleTimeString()}${missing}`, missing !== "");
			since = null;
		} catch (error) {
			since = since || new Date().toLocaleTimeString();
			kept.clear();
			say("state", `no answer since ${since} (${error.message}); trying again. What is shown is from before.`, true);
		}
		await new Promise((resolve) => setTimeout(resolve, POLL_MS));
	}
}

function add(text) {
	const lines = document.getElementById("lines");
	const is_at_end = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 5;
	const all = (lines.textContent + text).split("\n");
	lines.textContent = all.slice(-LINES_MAX - 1).join("\n");
	if (is_at_end)
		lines.scrollTop = lines.scrollHeight;
}

/** Follow a channel or trace until another one is followed; when the connection ends, connect again, and say so. */
async function follow(sort, name) {
	if (tail)
		tail.abort();
	const own = tail = new AbortController();
	document.getElementById("tail").hidden = false;
	document.getElementById("followed").textContent = `${sort} ${name}`;
	document.getElementById("lines").textContent = "";
	document.getElementById("tail").scrollIntoView();
	for (let attempt = 0; !own.signal.aborted; attempt++) {
		try {
			say("tail_state", "connecting ...");
			const answer = await ask("events", { [sort]: name }, { signal: own.signal });
			if (!answer.ok)
				throw new Error((await answer.text()).trim());
			say("tail_state", "connected");
			if (attempt)
				add("--- connected again: what was written meanwhile is not shown\n");
			await read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
			throw new Error("the server has ended the connection");
		} catch (error) {
			if (own.signal.aborted)
				return;
			say("tail_state", `${error.message}; trying again`, true);
		}
		await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
	}
}

async function read(reader) {
	let text = "", n_hidden = 0;
	for (;;) {
		const { value, done } = await reader.read();
		if (done)
			return;
		const { messages, rest } = parse_events(text + value);
		text = rest;
		const lines = messages.map(line_of).filter((one) => one !== null);
		if (document.getElementById("pause").dataset.on) {
			n_hidden += lines.length;
			say("tail_state", `paused; ${n_hidden} lines came since`);
			continue;
		}
		if (n_hidden) {
			lines.unshift(`--- ${n_hidden} lines, which came in the pause, are not shown`);
			say("tail_state", "connected");
			n_hidden = 0;
		}
		if (lines.length)
			add(lines.join("\n") + "\n");
	}
}

function start() {
	token = new URLSearchParams(location.search).get("token");
	document.getElementById("metrics").href = at("metrics");
	document.getElementById("dashboard").href = at("grafana.json");
	const pause = document.getElementById("pause");
	pause.addEventListener("click", () => {
		pause.dataset.on = pause.dataset.on ? "" : "1";
		pause.textContent = pause.dataset.on ? "Go on" : "Pause";
	});
	document.getElementById("close").addEventListener("click", () => {
		tail.abort();
		document.getElementById("tail").hidden = true;
	});
	poll();
}

if (typeof document !== "undefined")
	start();
