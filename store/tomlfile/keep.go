package tomlfile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/statedir"
)

const (
	keepName    = "files.state"
	keepVersion = 1
)

// goodState is the last good state of all files. Services and address settings are saved from
// snapshot, and restored into files.
type goodState struct {
	snapshot store.Snapshot
	files    map[string]*contents
	defaults map[string]any
	// settings holds the other sections of the main file, or nil if they are unknown.
	settings *Document
}

func (l *loader) good() *goodState {
	return &goodState{snapshot: l.state, defaults: l.defaults, settings: l.main.good}
}

// keptHead is the first line of the file. It is followed by a line for each table.
type keptHead struct {
	Version int `json:"version"`
	// Folder is the working directory. It is needed because file names may be relative.
	Folder string `json:"folder"`
	// Main is the name of the main file. Settings holds its sections other than services, address
	// settings and defaults.
	Main     string         `json:"main,omitempty"`
	Settings map[string]any `json:"settings,omitempty"`
	// Defaults holds [defaults].
	Defaults map[string]any `json:"defaults,omitempty"`
	// Tables is the number of tables that follow.
	Tables int `json:"tables"`
}

// keptTable is a valid table that defines a service or the settings of an address.
type keptTable struct {
	File    string         `json:"file"`
	Service balancer.Name  `json:"service,omitempty"`
	VIP     string         `json:"vip,omitempty"`
	Fields  map[string]any `json:"fields"`
	// Line is the table's line in the file. Lines holds the lines of its fields.
	Line  int                 `json:"line,omitempty"`
	Lines balancer.FieldLines `json:"lines,omitempty"`
}

func (t *keptTable) origin() balancer.Origin {
	return balancer.Origin{File: t.File, Line: t.Line, Fields: t.Lines}
}

func encodeKept(w *bufio.Writer, s *goodState) error {
	folder, _ := os.Getwd() // if the folder is unknown, relative names can't be used
	lines := json.NewEncoder(w)
	head := keptHead{Version: keepVersion, Folder: folder, Defaults: s.defaults, Tables: s.snapshot.Services.Len() + s.snapshot.VIPs.Len()}
	if s.settings != nil {
		head.Main, head.Settings = s.settings.file, s.settings.tree
	}
	if err := lines.Encode(head); err != nil {
		return err
	}
	for name, service := range s.snapshot.Services.All() {
		o := service.Origin
		if err := lines.Encode(keptTable{File: o.File, Service: name, Fields: balancer.EncodeService(service), Line: o.Line, Lines: o.Fields}); err != nil {
			return err
		}
	}
	for addr, vip := range s.snapshot.VIPs.All() {
		o := vip.Origin
		if err := lines.Encode(keptTable{File: o.File, VIP: addr.String(), Fields: balancer.EncodeVIP(vip), Line: o.Line, Lines: o.Fields}); err != nil {
			return err
		}
	}
	return nil
}

// decodeHead decodes the first line of the saved state.
func decodeHead(lines *json.Decoder) (head keptHead, err error) {
	lines.UseNumber()
	if err := lines.Decode(&head); err != nil {
		return head, err
	}
	if head.Version != keepVersion {
		return head, fmt.Errorf("it has version %d, but this program reads only version %d", head.Version, keepVersion)
	}
	return head, nil
}

// settings returns the settings in h. It returns nil if h has no settings, or if their file's name
// is relative to another directory.
func (h *keptHead) settings() *Document {
	if here, _ := os.Getwd(); h.Main == "" || !filepath.IsAbs(h.Main) && h.Folder != here {
		return nil
	}
	none := func() map[string]mark { return nil }
	return &Document{file: h.Main, tree: h.Settings, top: none, all: none}
}

// decodeKept decodes the last good state that an earlier process saved.
func decodeKept(text []byte) (*goodState, error) {
	lines := json.NewDecoder(bytes.NewReader(text))
	head, err := decodeHead(lines)
	if err != nil {
		return nil, err
	}
	here, _ := os.Getwd()
	kept := &goodState{files: map[string]*contents{}, defaults: head.Defaults, settings: head.settings()}
	for range head.Tables {
		var t keptTable
		if err := lines.Decode(&t); err != nil {
			return nil, err
		}
		if filepath.IsAbs(t.File) || head.Folder == here {
			t.define(kept.files)
		}
	}
	return kept, nil
}

// KeptSettings returns the last good settings of the file main that a Source saved in dir. It
// returns nil if nothing from that file was saved. The settings allow a start with an unusable
// file.
func KeptSettings(dir *statedir.Dir, main string) store.Document {
	var kept *Document
	file := dir.File(keepName, "", statedir.Large)
	err := file.Load(func(text []byte) error {
		head, err := decodeHead(json.NewDecoder(bytes.NewReader(text)))
		if len(head.Settings)+head.Tables > 0 {
			kept = head.settings()
		}
		return err
	})
	if err != nil || kept == nil || !samePath(kept.file, main) {
		return nil
	}
	return kept
}

// samePath reports whether two file names, which may be relative to the working directory, are the
// same path.
func samePath(a, b string) bool {
	x, err := filepath.Abs(a)
	y, err2 := filepath.Abs(b)
	return err == nil && err2 == nil && x == y
}

// define adds the table to its file's contents in files, unless this version of vipd rejects the
// table.
func (t *keptTable) define(files map[string]*contents) {
	c := files[t.File]
	if c == nil {
		c = &contents{path: t.File, kept: true, services: map[balancer.Name]definition[balancer.Service]{}, vips: map[netip.Addr]definition[balancer.VIP]{}}
		files[t.File] = c
	}
	at := t.origin()
	where := at.At
	if t.VIP != "" {
		if vip, _ := balancer.DecodeVIP(t.VIP, t.Fields, where, balancer.SeverityWarning); vip != nil {
			vip.Origin = at
			c.vips[vip.Addr] = definition[balancer.VIP]{value: vip, origin: at}
		}
		return
	}
	if service, _ := balancer.DecodeService(t.Service, t.Fields, nil, where, balancer.SeverityWarning); service != nil {
		service.Origin = at
		c.services[t.Service] = definition[balancer.Service]{value: service, origin: at}
	}
}
