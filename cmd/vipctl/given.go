package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/store/tomlfile"
)

// stdinName represents standard input in a list of files.
const stdinName = "-"

func fileFlag(usage string) cli.Flag {
	return &cli.StringSliceFlag{Name: "file", Aliases: []string{"f"}, Usage: usage}
}

func recursiveFlag() cli.Flag {
	return &cli.BoolFlag{Name: "recursive", Aliases: []string{"R"}, Usage: "also read the subfolders of a folder"}
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "check everything and show what would be done, without doing it"}
}

// written is the definition of a service or of a VIP's settings in a file.
type written struct {
	fields map[string]any
	where  balancer.Locator
}

// given is the content of the files that -f names.
type given struct {
	services map[balancer.Name]*written
	vips     map[netip.Addr]*written
	// bare lists the files that contain neither services nor VIP settings.
	bare []string
	// problems lists the problems found. A field that this version does not know results in a
	// warning.
	problems []balancer.Problem
}

// readGiven reads files, directories and standard input. It returns an error if something can't be
// read at all. Mistakes in the content are added to the problems.
func readGiven(c *cli.Call, places []string, recursive bool) (*given, error) {
	g := &given{services: map[balancer.Name]*written{}, vips: map[netip.Addr]*written{}}
	for i, place := range places {
		if place == stdinName && slices.Contains(places[:i], stdinName) {
			return nil, cli.WrongUse("standard input can be read only once, but -f - appears twice")
		}
		files, err := filesAt(place, recursive)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			name, text, err := readInput(c, file)
			if err != nil {
				return nil, err
			}
			g.add(name, text)
		}
	}
	return g, nil
}

// filesAt lists the files at place: the file itself or, for a directory, its .toml and .json files
// that are not hidden. If recursive is true, it includes files in subdirectories.
func filesAt(place string, recursive bool) ([]string, error) {
	if place == stdinName {
		return []string{place}, nil
	}
	if ext := filepath.Ext(place); ext == ".yaml" || ext == ".yml" {
		return nil, fmt.Errorf("%s: YAML is not supported; use TOML, or JSON as in \"vipctl export -o json\"", place)
	}
	info, err := os.Stat(place)
	if err != nil {
		return nil, unreadable(place, err)
	}
	if !info.IsDir() {
		return []string{place}, nil
	}
	var files []string
	err = filepath.WalkDir(place, func(path string, e fs.DirEntry, err error) error {
		hidden, ext := strings.HasPrefix(e.Name(), "."), filepath.Ext(path)
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != place && (hidden || !recursive):
			return fs.SkipDir
		case !e.IsDir() && !hidden && (ext == ".toml" || ext == ".json"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, unreadable(place, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("folder %s has no files that end in .toml or .json", place)
	}
	return files, nil
}

// maxInput is the maximum number of bytes that are read from standard input or a pipe.
const maxInput = 256 << 20

// readInput reads one file, or standard input, and returns its name for messages. It reads a pipe,
// such as a shell's <(COMMAND), to its end.
func readInput(c *cli.Call, file string) (name string, text []byte, err error) {
	name = file
	info, statErr := os.Stat(file)
	switch {
	case file == stdinName:
		name = "standard input"
		text, err = readStream(c.Context, func() (io.ReadCloser, error) { return io.NopCloser(c.Stdin), nil })
	case statErr == nil && info.Mode()&os.ModeNamedPipe != 0:
		text, err = readStream(c.Context, func() (io.ReadCloser, error) { return os.Open(file) })
	default:
		text, err = tomlfile.ReadFile(file)
	}
	if err != nil && c.Context.Err() == nil {
		err = unreadable(file, err)
	}
	return name, text, err
}

// unreadable returns an error about a file or folder that can't be read.
func unreadable(place string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no file or folder %s", place)
	}
	return fmt.Errorf("reading %s: %w", place, reason(err))
}

// reason returns the cause of an error about a file or a program, without its name.
func reason(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if program, ok := errors.AsType[*exec.Error](err); ok {
		return program.Err
	}
	return err
}

// readStream reads a stream up to its end, or until ctx is done. In the latter case, the goroutine
// that is still reading lives until the process exits.
func readStream(ctx context.Context, open func() (io.ReadCloser, error)) ([]byte, error) {
	var text []byte
	done := make(chan error, 1)
	go func() {
		from, err := open()
		if err == nil {
			text, err = io.ReadAll(io.LimitReader(from, maxInput+1))
			_ = from.Close() // nothing was written, so closing loses no data
		}
		done <- err
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case err := <-done:
		if err == nil && len(text) > maxInput {
			err = fmt.Errorf("the input has more than %d bytes", maxInput)
		}
		return text, err
	}
}

// add parses a file, and adds its definitions and problems. If the text starts with a brace, which
// TOML never does, it is JSON. Otherwise it is TOML.
func (g *given) add(file string, text []byte) {
	var tables, vips map[string]any
	var under func(section, name string) balancer.Locator
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		tables, vips = g.readJSON(file, text)
		under = func(string, string) balancer.Locator {
			return func(string) balancer.Origin { return balancer.Origin{File: file} }
		}
	} else {
		doc, problems := tomlfile.Parse(file, text)
		g.problems = append(g.problems, problems...)
		if doc == nil {
			return
		}
		tables = g.readTOML(doc)
		vips, _ = doc.Tree()["vips"].(map[string]any)
		under = func(section, name string) balancer.Locator { return doc.Under(decode.Join(section, name)) }
	}
	if len(tables)+len(vips) == 0 {
		g.bare = append(g.bare, file)
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		g.define(balancer.Name(name), tables[name], under("services", name))
	}
	for _, name := range slices.Sorted(maps.Keys(vips)) {
		g.defineVIP(name, vips[name], under("vips", name))
	}
}

// readTOML returns the service tables. It also accepts sections of the daemon configuration. Any
// other section is a mistake.
func (g *given) readTOML(doc *tomlfile.Document) map[string]any {
	conf := config.Default()
	for _, p := range decode.Into(&conf, doc.Tree()) {
		top := !strings.ContainsAny(p.Path, ".[")
		if p.Unknown && top {
			g.problem(doc.Where(p.Path), "", p.Path, p.Text+"; only [services.NAME] and [vips.\"ADDRESS\"] tables, and the sections of a daemon's config, belong in this file")
		}
	}
	if _, found := doc.Tree()["defaults"]; found {
		g.problems = append(g.problems, balancer.Problem{
			Severity: balancer.SeverityWarning, Origin: doc.Where("defaults"), Field: "defaults",
			Text: "is not written to etcd: each host has its own [defaults]",
		})
	}
	g.problems = append(g.problems, tomlfile.Sections(doc)...)
	tables, _ := doc.Tree()["services"].(map[string]any)
	return tables
}

// readJSON returns the tables of services and VIP settings. The text is {"services": {NAME: {...}},
// "vips": {ADDRESS: {...}}}, or only the services object.
func (g *given) readJSON(file string, text []byte) (services, vips map[string]any) {
	origin := balancer.Origin{File: file}
	var raw json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(text, &raw)); ok {
		at := min(max(int(syntax.Offset)-1, 0), len(text))
		origin.Line = 1 + bytes.Count(text[:at], []byte("\n"))
		g.problem(origin, "", "", "not valid JSON: "+syntax.Error())
		return nil, nil
	}
	top, err := schema.ParseObject(text)
	if err != nil {
		g.problem(origin, "", "", err.Error())
		return nil, nil
	}
	inner, wrapped := top["services"]
	settings, both := top["vips"]
	if !wrapped && !both {
		return top, nil
	}
	for _, name := range slices.Sorted(maps.Keys(top)) {
		if name != "services" && name != "vips" {
			g.problem(origin, "", name, `is not allowed next to "services"; only {"services": {NAME: {...}}, "vips": {ADDRESS: {...}}} belongs in this file`)
		}
	}
	services, ok := inner.(map[string]any)
	if wrapped && !ok {
		g.problem(origin, "", "services", `needs an object for each service: {"services": {NAME: {...}}}`)
	}
	if vips, ok = settings.(map[string]any); both && !ok {
		g.problem(origin, "", "vips", `needs an object for each address: {"vips": {ADDRESS: {...}}}`)
	}
	return services, vips
}

func (g *given) define(name balancer.Name, raw any, where balancer.Locator) {
	fields, ok := raw.(map[string]any)
	if !ok {
		g.problem(where(""), name, "", "must be a table: write ["+decode.Join("services", string(name))+"]")
		return
	}
	if other, twice := g.services[name]; twice {
		g.problem(where(""), name, "", "is defined already, at "+other.where("").Text())
		return
	}
	g.services[name] = &written{fields: fields, where: where}
}

func (g *given) defineVIP(name string, raw any, where balancer.Locator) {
	path := decode.Join("vips", name)
	fields, ok := raw.(map[string]any)
	if !ok {
		g.problem(where(""), "", path, "must be a table: write ["+path+"]")
		return
	}
	_, problems := balancer.DecodeVIP(name, fields, where, balancer.SeverityWarning)
	for _, p := range problems {
		p.Field = strings.TrimSuffix(path+"."+p.Field, ".")
		g.problems = append(g.problems, p)
	}
	addr, err := decode.ParseAddr(name)
	if err != nil {
		return // DecodeVIP has reported the problem
	}
	if other, twice := g.vips[addr]; twice {
		g.problem(where(""), "", path, "is defined already, at "+other.where("").Text())
		return
	}
	g.vips[addr] = &written{fields: fields, where: where}
}

func (g *given) problem(at balancer.Origin, service balancer.Name, field, text string) {
	g.problems = append(g.problems, balancer.Problem{
		Severity: balancer.SeverityError, Origin: at, Service: service, Field: field, Text: text,
	})
}

// changes returns a change for each service, which writes the definition in the files to etcd.
func (g *given) changes() (all []definitions.Change) {
	for _, name := range slices.Sorted(maps.Keys(g.services)) {
		s := g.services[name]
		all = append(all, definitions.Change{Name: name, Fields: s.fields, Where: s.where})
	}
	return all
}
