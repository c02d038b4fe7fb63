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

// ledger is the record of the virtual servers that vipd made: the kernel has no room for a mark on them. It is written
// before each is made, so that it may name more than is there, and never less.
//
// The file is a log, so that a change costs one short line however many virtual servers there are: a header, then lines
// that say what a virtual server is from now on, or, with a minus, that it is none of ours any more. Each line ends in a
// checksum; one that does not fit, as the last may be when the machine ran out of room, is passed over. Where most lines
// say nothing any more, the file is written anew.
type ledger struct {
	path    string
	header  string
	entries map[balancer.Key]record
	// timeouts are those of open connections of TCP, of closing ones, and of UDP.
	timeouts [3]changed
	pending  bytes.Buffer // lines that are not in the file yet
	lines    int          // those in the file
	fresh    bool         // the file is not there, or not to be added to: it has to be written whole
}

// record is what is remembered of a virtual server.
type record struct {
	// drain is how long connections may live when the virtual server is not wanted any more.
	drain time.Duration
	// until is set when it is not: its connections have until then.
	until time.Time
	// bounded: some destination has thresholds, which are not in the kernel's table of everything.
	bounded bool
}

// idle is how many lines that say nothing any more are never worth writing the file anew.
const idle = 1000

// openLedger reads the ledger of the folder. One of another boot or network namespace says nothing of this one, and is
// taken for empty. The error is that the file can't be read; the ledger is usable all the same.
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
	if text, ok := unsealed(header); !ok || text != l.header {
		return l, nil
	}
	l.fresh = !bytes.HasSuffix(text, []byte("\n")) // after half a line, none can be added
	for line := range strings.Lines(rest) {
		l.lines++
		l.read(strings.TrimSuffix(line, "\n"))
	}
	return l, nil
}

// sealed is a line with its checksum.
func sealed(text string) string {
	return fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

func unsealed(line string) (string, bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return "", false
	}
	sum, err := strconv.ParseUint(line[i+1:], 16, 32)
	return line[:i], err == nil && uint32(sum) == crc32.ChecksumIEEE([]byte(line[:i]))
}

// read takes in one line.
func (l *ledger) read(line string) {
	text, ok := unsealed(line)
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
	return sealed(fmt.Sprintf("+ %s %d %d %s", k, r.drain.Milliseconds(), until, bounded))
}

// owns reports whether vipd made the virtual server.
func (l *ledger) owns(k balancer.Key) bool {
	_, ok := l.entries[k]
	return ok
}

// set notes a virtual server that vipd made, or is about to make.
func (l *ledger) set(k balancer.Key, r record) {
	line := r.line(k)
	if old, ok := l.entries[k]; ok && old.line(k) == line {
		return
	}
	l.entries[k] = r
	l.pending.WriteString(line)
}

// drop notes that a virtual server is not vipd's, or not there any more.
func (l *ledger) drop(k balancer.Key) {
	if _, ok := l.entries[k]; ok {
		delete(l.entries, k)
		l.pending.WriteString(sealed("- " + k.String()))
	}
}

// setTimeouts notes which timeouts vipd changes, or has changed.
func (l *ledger) setTimeouts(all [3]changed) {
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
	return sealed(text)
}

func (l *ledger) readTimeouts(words []string) {
	var all [3]changed
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

// clear forgets everything, because nothing of it is there any more.
func (l *ledger) clear() error {
	for k := range l.entries {
		l.drop(k)
	}
	l.setTimeouts([3]changed{})
	return l.save()
}

// empty reports whether nothing is noted.
func (l *ledger) empty() bool { return len(l.entries) == 0 && l.timeouts == [3]changed{} }

// save brings the file to what was set and dropped.
func (l *ledger) save() error {
	if l.pending.Len() == 0 {
		return nil
	}
	added := bytes.Count(l.pending.Bytes(), []byte("\n"))
	write := l.append
	if l.fresh || l.empty() || l.lines+added > 2*len(l.entries)+idle {
		write = l.rewrite
	}
	if err := write(); err != nil {
		l.fresh = true // how much of it is there is unknown
		return fmt.Errorf("writing the ledger of virtual servers: %w", err)
	}
	l.pending.Reset()
	return nil
}

// renew is save, and writes the file anew if another program has removed it.
func (l *ledger) renew() error {
	if _, err := os.Stat(l.path); errors.Is(err, fs.ErrNotExist) && !l.empty() {
		l.pending.WriteString(l.timeoutsLine()) // append finds no file, and writes all
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

// rewrite puts a file of the entries alone in the place of the old one, at once. An empty ledger is no file.
func (l *ledger) rewrite() error {
	if l.empty() {
		if err := atomicfile.Remove(l.path); err != nil {
			return err
		}
		l.lines, l.fresh = 0, true
		return nil
	}
	err := atomicfile.Write(l.path, atomicfile.ThisBoot, func(w *bufio.Writer) error {
		w.WriteString(sealed(l.header))
		w.WriteString(l.timeoutsLine())
		for _, k := range slices.SortedFunc(maps.Keys(l.entries), balancer.Key.Compare) {
			w.WriteString(l.entries[k].line(k))
		}
		return nil // Write finds the writer's errors
	})
	if err != nil {
		return err
	}
	l.lines, l.fresh = 1+len(l.entries), false
	return nil
}
