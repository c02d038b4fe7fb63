package etcd

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/atomicfile"
)

// cache is the file with the last good state: one JSON line about the whole, one a key, and the checksum of them all.
type cache struct {
	path   string // "" means there is none
	prefix string // as NewKeys writes it
	// loaded: the state came from the file. saved is the state that is in the file.
	loaded bool
	saved  state
	// saving: a goroutine writes the file, and tells how that went on done. next is when the next one may.
	saving bool
	done   chan saved
	next   time.Time
	failed string // the last error that was logged
}

// saved is the outcome of a save.
type saved struct {
	state state
	took  time.Duration
	err   error
}

const (
	cacheName    = "etcd.state"
	cacheVersion = 1
	// savePause is the least time between two saves; a save takes at most one part in saveShare of the time.
	savePause = 5 * time.Second
	saveShare = 20
)

// cacheHead is the first line of the file.
type cacheHead struct {
	Version  int       `json:"version"`
	Prefix   string    `json:"prefix"`
	Revision int64     `json:"revision"`
	Cluster  uint64    `json:"cluster,omitempty"`
	Saved    time.Time `json:"saved"`
	Keys     int       `json:"keys"`
}

// cachedKey is a key with its last good value.
type cachedKey struct {
	Key      string `json:"key"`
	Text     string `json:"text"`
	Created  int64  `json:"created"`
	Modified int64  `json:"modified"`
	Lease    int64  `json:"lease,omitempty"`
	// Kept: it had vanished with its lease, and stayed in use.
	Kept bool `json:"kept,omitempty"`
}

func newCache(dir, prefix string) *cache {
	c := &cache{prefix: prefix, done: make(chan saved, 1)}
	if dir != "" {
		c.path = filepath.Join(dir, cacheName)
	}
	return c
}

// load fills the state with what the file holds. A file that is damaged is set aside; one that can't be read stays, for a restart.
func (w *watching) load() {
	c := w.cache
	if c.path == "" {
		return
	}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		w.options.Log.Error("the last good state of etcd can't be read, and is left as it is", "err", err)
		return
	}
	head, keys, err := parseCache(text)
	if err == nil && strings.TrimRight(head.Prefix, "/") != c.prefix {
		return // it is of another fleet
	}
	if err != nil {
		err = errors.Join(err, os.Rename(c.path, c.path+".broken"))
		w.options.Log.Error("the last good state of etcd is damaged; it is now "+c.path+".broken", "err", err)
		return
	}
	w.restore(head, keys)
	c.loaded, c.saved = true, w.state
}

func (w *watching) restore(head cacheHead, keys []cachedKey) {
	now := w.timing.now()
	services := map[balancer.Name]bool{}
	for _, k := range keys {
		if !slices.ContainsFunc(w.scopes, func(s scope) bool { return s.holds(k.Key) }) {
			continue // this node had another name
		}
		r := w.reader.make(k.Key, value{[]byte(k.Text), k.Created, k.Modified, k.Lease}, nil)
		if !r.good() {
			continue // a newer version wrote it
		}
		if k.Kept {
			w.state.restoreDeparted(r, now)
		} else {
			w.state.put(r, now)
		}
		services[r.of] = true
	}
	w.state.revision, w.state.cluster = head.Revision, head.Cluster
	for name := range services {
		w.state.settle(name, now)
	}
}

func parseCache(text []byte) (head cacheHead, keys []cachedKey, err error) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n') + 1
	sum := sha256.Sum256(text[:end])
	if want := bytes.TrimSpace(text[end:]); !bytes.Equal(want, []byte(hex.EncodeToString(sum[:]))) {
		return head, nil, errors.New("its checksum is wrong: it was cut short or edited")
	}
	d := json.NewDecoder(bytes.NewReader(text[:end]))
	if err := d.Decode(&head); err != nil {
		return head, nil, err
	}
	if head.Version != cacheVersion {
		return head, nil, fmt.Errorf("it has version %d; this program reads %d", head.Version, cacheVersion)
	}
	for d.More() {
		var k cachedKey
		if err := d.Decode(&k); err != nil {
			return head, nil, err
		}
		keys = append(keys, k)
	}
	return head, keys, nil
}

// save begins to keep the state, unless that is being done, or was a moment ago.
func (w *watching) save() {
	c := w.cache
	select {
	case s := <-c.done:
		c.saving = false
		w.savedAs(s)
	default:
	}
	if !c.wants(w.shown()) || c.saving || w.timing.now().Before(c.next) {
		return
	}
	c.saving = true
	state := *w.shown()
	w.running.Go(func() { c.done <- c.write(state) })
}

// saveLast keeps the state at the end of Watch, when no save is under way.
func (w *watching) saveLast() {
	c := w.cache
	if c.saving {
		w.savedAs(<-c.done)
	}
	if s := w.shown(); c.wants(s) {
		w.savedAs(c.write(*s))
	}
}

// wants reports whether the file does not hold s.
func (c *cache) wants(s *state) bool {
	return c.path != "" && s.revision != 0 && (s.records != c.saved.records || s.departed != c.saved.departed)
}

// savedAs takes in the outcome of a save.
func (w *watching) savedAs(s saved) {
	c := w.cache
	c.next = w.timing.now().Add(max(savePause, saveShare*s.took))
	if s.err == nil {
		c.saved, c.failed = s.state, ""
		return
	}
	if c.failed != s.err.Error() {
		c.failed = s.err.Error()
		w.options.Log.Error("the last good state of etcd is not kept", "err", s.err)
	}
}

// write replaces the file as a whole, so that a crash leaves the old one or the new one.
func (c *cache) write(s state) (out saved) {
	began := time.Now()
	out.state = s
	defer func() { out.took = time.Since(began) }()
	err := atomicfile.Write(c.path, atomicfile.Lasting, func(w *bufio.Writer) error { return c.encode(w, s) })
	if err != nil {
		out.err = fmt.Errorf("keeping state in state_dir: %w", err)
	}
	return out
}

func (c *cache) encode(buffer *bufio.Writer, s state) error {
	sum := sha256.New()
	write := func(line any) error {
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		text = append(text, '\n')
		_, _ = sum.Write(text) // a hash takes everything
		_, err = buffer.Write(text)
		return err
	}
	head := cacheHead{Version: cacheVersion, Prefix: c.prefix, Revision: s.revision, Cluster: s.cluster, Saved: time.Now().UTC(), Keys: s.records.Len()}
	if err := write(head); err != nil {
		return err
	}
	line := func(r *record, kept bool) error {
		if !r.good() {
			return nil
		}
		return write(cachedKey{r.key, string(r.last.text), r.last.created, r.last.modified, r.last.lease, kept})
	}
	for _, r := range s.records.All() {
		if err := line(r, false); err != nil {
			return err
		}
	}
	for _, d := range s.departed.All() {
		if !d.kept {
			continue
		}
		if err := line(d.record, true); err != nil {
			return err
		}
	}
	fmt.Fprintln(buffer, hex.EncodeToString(sum.Sum(nil)))
	return nil // atomicfile finds the writer's errors
}
