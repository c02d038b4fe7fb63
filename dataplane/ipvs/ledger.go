package ipvs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/atomicfile"
)

// ledgerFile is the name of the ledger in run_dir.
const ledgerFile = "ipvs.ledger"

// ledger records which virtual servers vipd created, because the kernel can't store their owner. It
// is written before each creation, so it may name virtual servers that do not exist, but never
// omits an existing one.
//
// The file is a log. A change appends a short line, regardless of the number of virtual servers.
// After a header, each line describes a virtual server, or starts with a minus if the virtual
// server is no longer vipd's. Each line ends with a checksum. Invalid lines are ignored, for
// example an incomplete last line after the disk became full. When most lines are obsolete, the
// file is rewritten.
type ledger struct {
	path    string
	header  string
	entries map[balancer.Key]record
	// timeouts are the timeouts of open and closing TCP connections, and of UDP.
	timeouts [3]timeoutChange
	pending  bytes.Buffer // lines that are not in the file yet
	lines    int          // number of lines in the file
	fresh    bool         // the file is missing or can't be appended to, so it must be written completely
}

// record is the ledger's entry for a virtual server.
type record struct {
	// drain is how long connections may continue after the virtual server is no longer wanted.
	drain time.Duration
	// until is the deadline of connections, or zero while the virtual server is wanted.
	until time.Time
	// bounded reports whether some destination has thresholds, which the kernel's table does not
	// show.
	bounded bool
}

// maxObsoleteLines is the number of obsolete lines up to which the file is never rewritten.
const maxObsoleteLines = 1000

// openLedger reads the ledger in a directory. A ledger from another boot or network namespace is
// treated as empty. The ledger is usable even if its file can't be read.
func openLedger(dir, boot, namespace string) (*ledger, error) {
	l := &ledger{
		path: filepath.Join(dir, ledgerFile), header: strings.Join([]string{"vipd-ipvs-1", boot, namespace}, " "),
		entries: map[balancer.Key]record{}, fresh: true,
	}
	text, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("reading the ledger of virtual servers: %w", err)
	}
	header, rest, _ := strings.Cut(string(text), "\n")
	if text, ok := withoutChecksum(header); !ok || text != l.header {
		return l, nil
	}
	l.fresh = !bytes.HasSuffix(text, []byte("\n")) // no line may be appended to an incomplete line
	for line := range strings.Lines(rest) {
		l.lines++
		l.read(strings.TrimSuffix(line, "\n"))
	}
	return l, nil
}

func withChecksum(text string) string {
	return fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

func withoutChecksum(line string) (string, bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return "", false
	}
	sum, err := strconv.ParseUint(line[i+1:], 16, 32)
	return line[:i], err == nil && uint32(sum) == crc32.ChecksumIEEE([]byte(line[:i]))
}

// read applies a line of the file to the entries. It ignores invalid lines.
func (l *ledger) read(line string) {
	text, ok := withoutChecksum(line)
	words := strings.Fields(text)
	if !ok || len(words) < 2 {
		return
	}
	if words[0] == "t" {
		l.readTimeouts(words[1:])
		return
	}
	key, err := balancer.ParseKey(words[1])
	switch {
	case err != nil:
	case words[0] == "-":
		delete(l.entries, key)
	case words[0] == "+" && len(words) == 5:
		drain, drainErr := strconv.ParseInt(words[2], 10, 64)
		until, untilErr := strconv.ParseInt(words[3], 10, 64)
		if drainErr != nil || untilErr != nil {
			return
		}
		r := record{drain: time.Duration(drain) * time.Millisecond, bounded: words[4] == "b"}
		if until != 0 {
			r.until = time.UnixMilli(until)
		}
		l.entries[key] = r
	}
}

func (r record) line(k balancer.Key) string {
	until, bounded := int64(0), "-"
	if !r.until.IsZero() {
		until = r.until.UnixMilli()
	}
	if r.bounded {
		bounded = "b"
	}
	return withChecksum(fmt.Sprintf("+ %s %d %d %s", k, r.drain.Milliseconds(), until, bounded))
}

// owns reports whether vipd created the virtual server.
func (l *ledger) owns(k balancer.Key) bool {
	_, ok := l.entries[k]
	return ok
}

// set records a virtual server that vipd created or is about to create.
func (l *ledger) set(k balancer.Key, r record) {
	line := r.line(k)
	if old, ok := l.entries[k]; ok && old.line(k) == line {
		return
	}
	l.entries[k] = r
	l.pending.WriteString(line)
}

// drop records that a virtual server is not vipd's, or no longer exists.
func (l *ledger) drop(k balancer.Key) {
	if _, ok := l.entries[k]; ok {
		delete(l.entries, k)
		l.pending.WriteString(withChecksum("- " + k.String()))
	}
}

// setTimeouts records the timeouts that vipd has changed or is about to change.
func (l *ledger) setTimeouts(all [3]timeoutChange) {
	if all != l.timeouts {
		l.timeouts = all
		l.pending.WriteString(l.timeoutsLine())
	}
}

func (l *ledger) timeoutsLine() string {
	text := "t"
	for _, c := range l.timeouts {
		text += fmt.Sprintf(" %d %d", c.old/time.Second, c.set/time.Second)
	}
	return withChecksum(text)
}

func (l *ledger) readTimeouts(words []string) {
	var all [3]timeoutChange
	if len(words) != 2*len(all) {
		return
	}
	for i := range all {
		for j, to := range []*time.Duration{&all[i].old, &all[i].set} {
			n, err := strconv.ParseInt(words[2*i+j], 10, 32)
			if err != nil {
				return
			}
			*to = time.Duration(n) * time.Second
		}
	}
	l.timeouts = all
}

// clear removes all entries, because none of the recorded virtual servers exists.
func (l *ledger) clear() error {
	for k := range l.entries {
		l.drop(k)
	}
	l.setTimeouts([3]timeoutChange{})
	return l.save()
}

// empty reports whether the ledger has neither entries nor changed timeouts.
func (l *ledger) empty() bool { return len(l.entries) == 0 && l.timeouts == [3]timeoutChange{} }

func (l *ledger) save() error {
	if l.pending.Len() == 0 {
		return nil
	}
	added := bytes.Count(l.pending.Bytes(), []byte("\n"))
	write := l.append
	if l.fresh || l.empty() || l.lines+added > 2*len(l.entries)+maxObsoleteLines {
		write = l.rewrite
	}
	if err := write(); err != nil {
		l.fresh = true // the file may end with an incomplete line
		return fmt.Errorf("writing the ledger of virtual servers: %w", err)
	}
	l.pending.Reset()
	return nil
}

// renew saves the changes, and rewrites the file if another program has removed it.
func (l *ledger) renew() error {
	if _, err := os.Stat(l.path); errors.Is(err, fs.ErrNotExist) && !l.empty() {
		l.pending.WriteString(l.timeoutsLine()) // something must be pending, so save notices the missing file and writes everything
	}
	return l.save()
}

func (l *ledger) append() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return l.rewrite()
	}
	if err != nil {
		return err
	}
	_, err = f.Write(l.pending.Bytes())
	l.lines += bytes.Count(l.pending.Bytes(), []byte("\n"))
	return errors.Join(err, f.Close())
}

// rewrite atomically replaces the file with a file that contains the current entries. If the ledger
// is empty, it removes the file.
func (l *ledger) rewrite() error {
	if l.empty() {
		if err := atomicfile.Remove(l.path); err != nil {
			return err
		}
		l.lines, l.fresh = 0, true
		return nil
	}
	err := atomicfile.Write(l.path, atomicfile.ThisBoot, func(w *bufio.Writer) error {
		w.WriteString(withChecksum(l.header))
		w.WriteString(l.timeoutsLine())
		for _, k := range slices.SortedFunc(maps.Keys(l.entries), balancer.Key.Compare) {
			w.WriteString(l.entries[k].line(k))
		}
		return nil // Write returns the writer's errors
	})
	if err != nil {
		return err
	}
	l.lines, l.fresh = 1+len(l.entries), false
	return nil
}
