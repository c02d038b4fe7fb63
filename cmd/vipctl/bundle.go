package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lists"
	"vipd/store/tomlfile"
)

func debugVerb() *cli.Verb {
	return &cli.Verb{
		Name: "debug", Args: "bundle", Brief: "gather the information for a bug report in one file",
		About: `"debug bundle" writes a tar.gz file with vipd's status, lists, differences and
events, doctor's findings, the configuration and services files, vipd's kernel
objects, addresses, routes, and the stacks of vipd's goroutines. If something
can't be read, the bundle contains the reason instead.

Headers and texts that checks send, arguments of programs, and passwords and
queries in URLs are replaced by "(hidden)". Files with passwords or keys are
not read, and clients' addresses are omitted. Review the bundle before you
share it: it contains names and addresses of your network.`,
		Example: "sudo vipctl debug bundle --file /tmp/bundle.tar.gz",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "write to `FILE`; - writes to standard output; default: vipd-HOST-TIME.tar.gz in this folder"},
		},
		MinArgs: 1, MaxArgs: 1,
		Complete: cli.InTurn(cli.OneOf("bundle")),
		Run:      runDebug,
	}
}

// bundleWait is the timeout for collecting one part of a bundle.
const bundleWait = 30 * time.Second

func runDebug(c *cli.Call) error {
	if c.Args[0] != "bundle" {
		return cli.WrongUse("\"vipctl debug\" has the command bundle, not %q", c.Args[0])
	}
	file := c.Flags.String("file")
	if file == "-" {
		return writeBundle(c, c.Stdout)
	}
	if file == "" {
		host, _ := os.Hostname() // if the host name is unknown, the file name omits it
		file = fmt.Sprintf("vipd-%s-%s.tar.gz", host, c.Now().Format("20060102-150405"))
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the folder %s does not exist: set --file to a file in an existing folder", filepath.Dir(file))
	case err != nil:
		return fmt.Errorf("writing the bundle to %s: %v; set --file to another file", file, reason(err))
	}
	if err := writeBundle(c, out); err != nil {
		_ = out.Close()
		_ = os.Remove(file) // an incomplete bundle is useless
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	return c.Print(file + "\n")
}

// exhibit is a file in a bundle.
type exhibit struct {
	name string
	read func(context.Context) ([]byte, error)
}

func writeBundle(c *cli.Call, to io.Writer) error {
	packed := gzip.NewWriter(to)
	archive := tar.NewWriter(packed)
	folder := "vipd-bundle/"
	for _, x := range exhibits(c) {
		ctx, cancel := context.WithTimeout(c, bundleWait)
		text, err := x.read(ctx)
		cancel()
		if c.Err() != nil {
			return c.Err()
		}
		if err != nil {
			c.Note("%s is not complete: %v", x.name, err)
			text = fmt.Appendf(text, "\n(not complete: %v)\n", err)
		}
		h := &tar.Header{Name: folder + x.name, Mode: 0o600, Size: int64(len(text)), ModTime: c.Now()}
		if err := archive.WriteHeader(h); err != nil {
			return fmt.Errorf("writing the bundle: %w", err)
		}
		if _, err := archive.Write(text); err != nil {
			return fmt.Errorf("writing the bundle: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	return packed.Close()
}

// exhibits returns a bundle's files: vipctl output, configuration files, kernel state, and the
// daemon's profiles.
func exhibits(c *cli.Call) []exhibit {
	all := []exhibit{
		answer(c, "version.txt", "version"), answer(c, "status.json", "status", "-o", "json"),
		answer(c, "services.txt", "get", "services", "-o", "wide"), answer(c, "endpoints.json", "get", "endpoints", "-o", "json"),
		answer(c, "frontends.json", "get", "frontends", "-o", "json"), answer(c, "diff.txt", "diff"),
		answer(c, "events.txt", "events", "-n", "0"), answer(c, "doctor.txt", "doctor"),
	}
	conf, _, err := config.Load(c.Flags.String("config"))
	files := []string{c.Flags.String("config")}
	if place := conf.Store.Path; err == nil && place != "" {
		if in, err := filepath.Glob(filepath.Join(place, "*.toml")); err == nil && in != nil {
			files = append(files, in...)
		} else {
			files = append(files, place)
		}
	}
	for i, file := range files {
		all = append(all, exhibit{fmt.Sprintf("config/%d-%s", i, filepath.Base(file)), func(context.Context) ([]byte, error) { return shareable(file) }})
	}
	all = append(all,
		output("kernel/uname.txt", nil, "uname", "-a"), output("kernel/addresses.txt", nil, "ip", "-d", "address"),
		output("kernel/routes.txt", nil, "ip", "route", "show", "table", "all"), output("kernel/routes6.txt", nil, "ip", "-6", "route", "show", "table", "all"),
		output("kernel/rules.txt", nil, "ip", "rule"), exhibit{"kernel/nft.txt", ourTables},
		output("kernel/iptables.txt", isOurs, "iptables-save", "-c"), output("kernel/ip6tables.txt", isOurs, "ip6tables-save", "-c"),
		output("kernel/ipset.txt", isOurs, "ipset", "list", "-name"), output("kernel/ipvs.txt", nil, "ipvsadm", "-Ln", "--stats"),
		exhibit{"daemon/goroutines.txt", func(ctx context.Context) ([]byte, error) { return profile(c, ctx, "goroutine?debug=2") }},
		exhibit{"daemon/heap.pprof", func(ctx context.Context) ([]byte, error) { return profile(c, ctx, "heap") }},
	)
	return all
}

// answer returns an exhibit that runs another vipctl verb, and contains its stdout and stderr.
func answer(c *cli.Call, name string, args ...string) exhibit {
	return exhibit{name, func(ctx context.Context) ([]byte, error) {
		var text bytes.Buffer
		w := c.World
		w.Stdout = &text
		w.Stderr = &text
		w.Color = false
		w.Width = 0
		w.OutTerminal = false
		args = append(args, "--config", c.Flags.String("config"))
		if socket := c.Flags.String("socket"); socket != "" {
			args = append(args, "--socket", socket)
		}
		cli.Run(ctx, w, verbs(), args) // the text includes any error
		return text.Bytes(), ctx.Err()
	}}
}

func profile(c *cli.Call, ctx context.Context, what string) ([]byte, error) {
	d, err := c.Client()
	if err != nil {
		return nil, err
	}
	return d.Profile(ctx, what)
}

// output returns an exhibit with a command's output. keep selects the lines to include; if nil, all
// lines are included.
func output(name string, keep func(line string) bool, command ...string) exhibit {
	return exhibit{name, func(ctx context.Context) ([]byte, error) {
		text, err := printed(ctx, command...)
		if err != nil || keep == nil {
			return text, err
		}
		var kept bytes.Buffer
		for line := range bytes.Lines(text) {
			if keep(string(line)) {
				kept.Write(line)
			}
		}
		return kept.Bytes(), nil
	}}
}

// printed returns a command's output. If the command fails, the error is the first line of its
// output, or its exit status if it printed nothing.
func printed(ctx context.Context, command ...string) ([]byte, error) {
	text, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err == nil {
		return text, nil
	}
	if line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n"); line != "" {
		err = errors.New(line)
	}
	return text, fmt.Errorf("%s: %w", command[0], err)
}

// isOurs reports whether a line mentions vipd.
func isOurs(line string) bool { return strings.Contains(strings.ToLower(line), "vipd") }

func ourTables(ctx context.Context) ([]byte, error) {
	text, err := printed(ctx, "nft", "list", "tables")
	if err != nil {
		return text, err
	}
	var all bytes.Buffer
	for line := range strings.Lines(string(text)) {
		if !isOurs(line) {
			continue
		}
		table, err := printed(ctx, append([]string{"nft", "list"}, strings.Fields(line)...)...)
		all.Write(withoutClients(table))
		if err != nil {
			return all.Bytes(), err
		}
	}
	return all.Bytes(), nil
}

// withoutClients hides the elements of the sets and maps in nft's output whose keys contain the
// source address of packets, such as the clients that affinity remembers.
func withoutClients(table []byte) []byte {
	var kept bytes.Buffer
	clients, inside := false, false
	for line := range bytes.Lines(table) {
		text := bytes.TrimSpace(line)
		switch {
		case inside:
			inside = !bytes.HasSuffix(text, []byte("}"))
			continue
		case bytes.HasPrefix(text, []byte("typeof ")):
			clients = bytes.Contains(text, []byte("saddr"))
		case clients && bytes.HasPrefix(text, []byte("elements = {")):
			kept.WriteString("\t\telements = { " + hidden + " }\n")
			inside = !bytes.HasSuffix(text, []byte("}"))
			continue
		}
		kept.Write(line)
	}
	return kept.Bytes()
}

// hidden replaces a value that may be secret.
const hidden = "(hidden)"

// shareable returns the content of a configuration or services file. It removes comments, and hides
// values that may be secret.
func shareable(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w; set --config to this vipd's configuration file", err)
	}
	doc, problems := tomlfile.Parse(file, text)
	if doc == nil {
		if len(problems) > 0 {
			return nil, errors.New(problems[0].String())
		}
		return nil, errors.New("it can't be read")
	}
	var b bytes.Buffer
	if err := toml.NewEncoder(&b).Encode(redact(doc.Tree())); err != nil {
		return nil, fmt.Errorf("writing TOML: %w", err)
	}
	return b.Bytes(), nil
}

// redact returns a copy of a value with its secrets hidden: headers and data that checks send,
// passwords, program arguments, and passwords and queries in URLs.
func redact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			program, _ := value.([]any)
			switch {
			case key == "headers", key == "send", key == "send_hex", key == "password":
				out[key] = hidden
			case (key == "command" || key == "exec" || strings.HasPrefix(key, "on_")) && len(program) > 1:
				out[key] = []any{program[0], hidden}
			default:
				out[key] = redact(value)
			}
		}
		return out
	case []map[string]any, []any:
		return lists.Mapped(elements(v), redact)
	case string:
		if text, _, query := strings.Cut(v, "?"); query {
			v = text + "?" + hidden
		}
		if u, err := url.Parse(v); err == nil && u.User != nil {
			u.User = url.User("hidden")
			return u.String()
		}
		return v
	}
	return v
}

// elements returns an array's elements. The TOML parser represents an array of tables as
// []map[string]any, and any other array as []any.
func elements(array any) (all []any) {
	switch array := array.(type) {
	case []any:
		return array
	case []map[string]any:
		for _, table := range array {
			all = append(all, table)
		}
	}
	return all
}
