package tomlfile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"vipd/balancer"
	"vipd/balancer/atomicfile"
	"vipd/balancer/wake"
	"vipd/store"
)

const (
	keepName    = "files.state"
	keepVersion = 1
	// keepPause is the least time before a write of the last good state; a write takes at most one part in keepShare of the time.
	keepPause = 5 * time.Second
	keepShare = 20
)

// keeper writes the last good state of what files define, for the next start. The file is a line of JSON about the whole, and one
// for each table.
type keeper struct {
	path string
	log  *slog.Logger
	// latest has the state that is to be kept, if there is one that is newer than what is kept.
	latest chan goodState
	failed string // the last error that was logged
}

// goodState is what is kept: services, settings of addresses, and the defaults that services are decoded with.
type goodState struct {
	store.Snapshot
	defaults map[string]any
}

// keptHead is the first line of the file.
type keptHead struct {
	Version int `json:"version"`
	// Folder is the working folder, to which names of files may be relative.
	Folder string `json:"folder"`
	// Defaults are [defaults].
	Defaults map[string]any `json:"defaults,omitempty"`
	// Tables is how many follow.
	Tables int `json:"tables"`
}

// keptTable is one table that was good: of a service, or of an address.
type keptTable struct {
	File    string         `json:"file"`
	Service balancer.Name  `json:"service,omitempty"`
	VIP     string         `json:"vip,omitempty"`
	Fields  map[string]any `json:"fields"`
}

// newKeeper returns one that writes into dir; "" means it does not.
func newKeeper(dir string, log *slog.Logger) *keeper {
	k := &keeper{log: log, latest: make(chan goodState, 1)}
	if dir != "" {
		k.path = filepath.Join(dir, keepName)
	}
	return k
}

// keep has s written some time.
func (k *keeper) keep(s goodState) {
	select {
	case <-k.latest: // it is older
	default:
	}
	k.latest <- s
}

// run writes what keep is given, until ctx has ended and the last of it is written.
func (k *keeper) run(ctx context.Context) {
	if k.path == "" {
		return
	}
	for pause := keepPause; wake.Sleep(ctx, pause); {
		select {
		case s := <-k.latest:
			pause = max(keepPause, keepShare*k.write(&s))
		case <-ctx.Done():
		}
	}
	select {
	case s := <-k.latest:
		k.write(&s)
	default:
	}
}

// write replaces the file, and returns how long it took. That it can't is told once.
func (k *keeper) write(s *goodState) time.Duration {
	began, failed := time.Now(), ""
	if err := atomicfile.Write(k.path, atomicfile.Lasting, func(w *bufio.Writer) error { return encodeKept(w, s) }); err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != k.failed {
		k.log.Error("the last good state of files is not kept in state_dir", "err", failed)
	}
	k.failed = failed
	return time.Since(began)
}

func encodeKept(w io.Writer, s *goodState) error {
	folder, _ := os.Getwd() // "": names that are relative mean nothing
	lines := json.NewEncoder(w)
	if err := lines.Encode(keptHead{keepVersion, folder, s.defaults, s.Services.Len() + s.VIPs.Len()}); err != nil {
		return err
	}
	for name, service := range s.Services.All() {
		if err := lines.Encode(keptTable{File: service.Origin.File, Service: name, Fields: balancer.EncodeService(service)}); err != nil {
			return err
		}
	}
	for addr, vip := range s.VIPs.All() {
		if err := lines.Encode(keptTable{File: vip.Origin.File, VIP: addr.String(), Fields: balancer.EncodeVIP(vip)}); err != nil {
			return err
		}
	}
	return nil
}

// kept returns the contents of files and the defaults when they were last good, as an earlier process has kept them. A file that can't
// be read is set aside, and told.
func (k *keeper) kept() (files map[string]*contents, defaults map[string]any) {
	if k.path == "" {
		return nil, nil
	}
	file, err := os.Open(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		files, defaults, err = decodeKept(bufio.NewReader(file))
		_ = file.Close() // it was only read
	}
	if err != nil {
		err = errors.Join(err, os.Rename(k.path, k.path+".broken"))
		k.log.Error("the last good state of files can't be read; it is now "+k.path+".broken", "err", err)
	}
	return files, defaults
}

func decodeKept(r io.Reader) (files map[string]*contents, defaults map[string]any, err error) {
	lines := json.NewDecoder(r)
	lines.UseNumber()
	var head keptHead
	if err := lines.Decode(&head); err != nil {
		return nil, nil, err
	}
	if head.Version != keepVersion {
		return nil, nil, fmt.Errorf("it has version %d; this program reads %d", head.Version, keepVersion)
	}
	here, _ := os.Getwd()
	files = map[string]*contents{}
	for range head.Tables {
		var t keptTable
		if err := lines.Decode(&t); err != nil {
			return nil, nil, err
		}
		if filepath.IsAbs(t.File) || head.Folder == here {
			t.define(files)
		}
	}
	return files, head.Defaults, nil
}

// define gives the file of t its table. One that this version does not take is left out.
func (t *keptTable) define(files map[string]*contents) {
	c := files[t.File]
	if c == nil {
		c = &contents{path: t.File, kept: true}
		files[t.File] = c
	}
	at := balancer.Origin{File: t.File}
	where := func(string) balancer.Origin { return at }
	if t.VIP != "" {
		if vip, _ := balancer.DecodeVIP(t.VIP, t.Fields, where, balancer.SeverityWarning); vip != nil {
			put(&c.vips, vip.Addr, vip, at)
		}
		return
	}
	if service, _ := balancer.DecodeService(t.Service, t.Fields, nil, where, balancer.SeverityWarning); service != nil {
		put(&c.services, t.Service, service, at)
	}
}

func put[K comparable, V any](tables *map[K]definition[V], key K, value *V, at balancer.Origin) {
	if *tables == nil {
		*tables = map[K]definition[V]{}
	}
	(*tables)[key] = definition[V]{value: value, origin: at}
}
