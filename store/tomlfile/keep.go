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
)

const (
	keepName    = "files.state"
	keepVersion = 1
)

// goodState is what is kept: services, settings of addresses, and the defaults that services are decoded with.
type goodState struct {
	store.Snapshot
	defaults map[string]any
}

// keptHead is the first line of the file, which has a line for each table after it.
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

func encodeKept(w *bufio.Writer, s goodState) error {
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

// decodeKept returns the contents of files and the defaults when they were last good, as an earlier process has kept them.
func decodeKept(text []byte) (files map[string]*contents, defaults map[string]any, err error) {
	lines := json.NewDecoder(bytes.NewReader(text))
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
		c = &contents{path: t.File, kept: true, services: map[balancer.Name]definition[balancer.Service]{}, vips: map[netip.Addr]definition[balancer.VIP]{}}
		files[t.File] = c
	}
	at := balancer.Origin{File: t.File}
	where := func(string) balancer.Origin { return at }
	if t.VIP != "" {
		if vip, _ := balancer.DecodeVIP(t.VIP, t.Fields, where, balancer.SeverityWarning); vip != nil {
			c.vips[vip.Addr] = definition[balancer.VIP]{value: vip, origin: at}
		}
		return
	}
	if service, _ := balancer.DecodeService(t.Service, t.Fields, nil, where, balancer.SeverityWarning); service != nil {
		c.services[t.Service] = definition[balancer.Service]{value: service, origin: at}
	}
}
