// Write JSON lines into a channel through its relay file: node node_writer.js MNT/app/json0 [COUNT]
//
// Each write(2) is one record, and is in shared memory when writeSync() returns. A server must not wait for a reader:
// while the buffer is full, lines are dropped, which this program and the channel's lost_full count. A channel that was
// made with mode=overwrite is never full.
'use strict';

const fs = require('fs');

class RelayLog {
	constructor(relayFile) {
		this.dropped = 0;
		// Without O_CREAT, which 'a' and 'w' contain: if nothing is mounted there, opening must fail.
		this.fd = fs.openSync(relayFile, fs.constants.O_WRONLY | fs.constants.O_NONBLOCK);
	}

	write(object) {
		try {
			fs.writeSync(this.fd, JSON.stringify(object) + '\n');
		} catch (error) {
			// EAGAIN: the buffer is full; ENOSPC: the channel is suspended, or the descriptor lacks O_NONBLOCK.
			if (error.code !== 'EAGAIN' && error.code !== 'ENOSPC')
				throw error;
			this.dropped++;
		}
	}

	close() {
		fs.closeSync(this.fd);
	}
}

const log = new RelayLog(process.argv[2]);
for (let request = 0; request < Number(process.argv[3] || 100); request++)
	log.write({ level: request % 10 === 7 ? 'ERROR' : 'INFO', request, text: `caf\u00e9 ${request}`, ms: request * 1.5 });
log.close();
if (log.dropped > 0)
	console.error(`${log.dropped} lines were dropped, because the buffer was full`);
