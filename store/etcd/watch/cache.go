package watch

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
)

const (
	cacheName    = "etcd.state"
	cacheVersion = 1
)

// cacheHead is the first line of the file with the last good state. It is followed by a line for
// each key, and by the checksum of all lines.
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
	// Kept reports whether the endpoint had vanished with its lease but remained in use.
	Kept bool `json:"kept,omitempty"`
}

// load reads the state from the file. It returns the history of etcd that the state belongs to.
func (w *watchRun) load() (h client.History) {
	err := w.file.Load(func(text []byte) error {
		head, keys, err := parseCache(text)
		if err == nil && strings.TrimRight(head.Prefix, "/") == w.keys.Prefix { // otherwise the state belongs to another fleet
			h = w.restore(head, keys)
			w.loaded, w.kept = true, w.state
		}
		return err
	})
	if err != nil {
		w.options.Log.Error("etcd's last good state can't be read", "err", err)
	}
	return h
}

func (w *watchRun) restore(head cacheHead, keys []cachedKey) client.History {
	now, h := w.timing.Now(), client.History{Cluster: head.Cluster, Revision: head.Revision}
	services := map[balancer.Name]bool{}
	for _, k := range keys {
		i := slices.IndexFunc(w.scopes, func(s client.Scope) bool { return s.Holds(k.Key) })
		if i < 0 {
			continue // the configuration under this node's previous name
		}
		exact := !strings.ContainsRune(k.Text, utf8.RuneError) // JSON replaces bytes that are not valid UTF-8
		if exact && !k.Kept && !w.scopes[i].Optional() {
			h.NoteLast(&mvccpb.KeyValue{Key: []byte(k.Key), Value: []byte(k.Text), ModRevision: k.Modified})
		}
		r := w.reader.make(k.Key, value{[]byte(k.Text), k.Created, k.Modified, k.Lease}, nil)
		if !r.good() {
			continue // a newer version wrote the value
		}
		if k.Kept {
			w.state.restoreDeparted(r, now)
		} else {
			w.state.put(r, now)
		}
		services[r.Of] = true
	}
	w.state.Revision, w.state.cluster = head.Revision, head.Cluster
	for name := range services {
		w.state.settle(name, now)
	}
	return h
}

func parseCache(text []byte) (head cacheHead, keys []cachedKey, err error) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n') + 1
	sum := sha256.Sum256(text[:end])
	if want := bytes.TrimSpace(text[end:]); !bytes.Equal(want, []byte(hex.EncodeToString(sum[:]))) {
		return head, nil, errors.New("its checksum is wrong: it was truncated or edited")
	}
	d := json.NewDecoder(bytes.NewReader(text[:end]))
	if err := d.Decode(&head); err != nil {
		return head, nil, err
	}
	if head.Version != cacheVersion {
		return head, nil, fmt.Errorf("it has version %d, but this program reads only version %d", head.Version, cacheVersion)
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

// save writes the state to the file if it has changed.
func (w *watchRun) save() {
	if s := w.shown(); s.Revision != 0 && (s.records != w.kept.records || s.departed != w.kept.departed) {
		kept := *s
		w.kept = kept
		w.file.Keep(func(to *bufio.Writer) error { return encodeCache(to, kept) })
	}
}

func encodeCache(buffer *bufio.Writer, s state) error {
	sum := sha256.New()
	write := func(line any) error {
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		text = append(text, '\n')
		_, _ = sum.Write(text) // Write never fails
		_, err = buffer.Write(text)
		return err
	}
	head := cacheHead{Version: cacheVersion, Prefix: s.keys.Prefix, Revision: s.Revision, Cluster: s.cluster, Saved: time.Now().UTC(), Keys: s.records.Len()}
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
	return nil // atomicfile detects the writer's errors
}
