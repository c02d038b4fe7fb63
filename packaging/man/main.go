package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	bin := flag.String("bin", "bin", "the `FOLDER` of the built programs")
	out := flag.String("o", "build/man", "the `FOLDER` to write to")
	version := flag.String("version", "", "the `VERSION` that the pages show")
	flag.Parse()
	if err := write(*bin, *out, *version); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// write writes all pages into a directory.
func write(bin, out, version string) error {
	pages, err := all(bin, version)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("making the folder: %w", err)
	}
	for _, p := range pages {
		if err := os.WriteFile(filepath.Join(out, p.file()), []byte(p.b.String()), 0o644); err != nil {
			return fmt.Errorf("writing a page: %w", err)
		}
	}
	return nil
}

// all returns all pages.
func all(bin, version string) ([]*page, error) {
	vipctl, err := asked(bin, "vipctl")
	if err != nil {
		return nil, err
	}
	pages := []*page{vipctlPage(vipctl, version)}
	for _, command := range vipctl.commands() {
		h, err := asked(bin, "vipctl", command.term)
		if err != nil {
			return nil, err
		}
		pages = append(pages, verbPage(command, h, version))
	}
	vipd, err := asked(bin, "vipd")
	if err != nil {
		return nil, err
	}
	owner, err := asked(bin, "vipd", "owner")
	if err != nil {
		return nil, err
	}
	settings, err := settingsPage(version)
	return append(pages, vipdPage(vipd, owner, version), settings), err
}

// asked returns the help of a program, or of one of its commands.
func asked(bin, program string, command ...string) (*help, error) {
	out, err := exec.Command(filepath.Join(bin, program), append(command, "--help")...).Output()
	if err != nil {
		return nil, fmt.Errorf("asking %s for help: %w", program, err)
	}
	return parseHelp(string(out)), nil
}

func vipctlPage(h *help, version string) *page {
	_, brief, _ := strings.Cut(h.usage, " - ")
	p := newPage("vipctl", 1, version, brief)
	p.heading("SYNOPSIS")
	p.literal([]string{h.lists["Usage"][0].term + " " + h.lists["Usage"][0].text})
	p.heading("COMMANDS")
	var others []string
	for _, list := range h.order {
		if !isCommands(list) {
			continue
		}
		p.subheading(list)
		for _, e := range h.lists[list] {
			p.item("vipctl "+e.term, e.text+"; see `vipctl-"+e.term+"`(1)")
			others = append(others, "vipctl-"+e.term+"(1)")
		}
	}
	p.heading("FLAGS")
	for _, list := range h.order {
		if list == "Usage" || isCommands(list) {
			continue
		}
		p.paragraph(list + ":")
		for _, e := range h.lists[list] {
			p.item(e.term, e.text)
		}
	}
	p.heading("EXIT STATUS")
	for _, text := range h.last {
		p.paragraph(strings.TrimPrefix(text, "Exit codes: "))
	}
	p.seeAlso(append(others, "vipd(8)", "vipd.toml(5)")...)
	return p
}

func verbPage(command listItem, h *help, version string) *page {
	p := newPage("vipctl-"+command.term, 1, version, command.text)
	p.heading("SYNOPSIS")
	p.literal([]string{h.usage + " [FLAGS]"})
	p.heading("DESCRIPTION")
	for _, text := range h.paragraphs {
		p.paragraph(text)
	}
	p.heading("FLAGS")
	for _, e := range h.lists["Flags"] {
		p.item(e.term, e.text)
	}
	for _, text := range h.last {
		p.paragraph(text)
	}
	p.heading("EXAMPLE")
	for _, e := range h.lists["Example"] {
		p.literal([]string{strings.TrimSpace(e.term + "  " + e.text)})
	}
	p.seeAlso("vipctl(1)", "vipd(8)", "vipd.toml(5)")
	return p
}

func vipdPage(h, owner *help, version string) *page {
	p := newPage("vipd", 8, version, "service load balancer for hosts without Kubernetes")
	p.heading("SYNOPSIS")
	p.literal([]string{"vipd [FLAGS]", "vipd owner [FLAGS]"})
	p.heading("DESCRIPTION")
	p.paragraph(h.usage)
	p.paragraph("SIGHUP reloads the configuration, like `vipctl reload`; vipd also notices changed files by itself. SIGTERM stops vipd: kernel " +
		"modes leave their rules and addresses, so traffic continues, but without health checks; userspace mode drains its connections. " +
		"`vipctl cleanup` removes everything that vipd has created.")
	p.heading("FLAGS")
	for _, e := range h.lists["Flags"] {
		p.item(e.term, e.text)
	}
	p.subheading("vipd owner")
	p.paragraph(owner.usage)
	for _, e := range owner.lists["Flags"] {
		p.item(e.term, e.text)
	}
	p.heading("EXIT STATUS")
	p.paragraph("0: vipd was stopped. 1: vipd failed. 2: incorrect usage. 78: the configuration can't be used, or another vipd runs in this network namespace.")
	p.heading("FILES")
	p.item("/etc/vipd/vipd.toml", "the configuration, see `vipd.toml`(5)")
	p.item("/run/vipd/vipd.sock", "the socket for `vipctl`(1), open to root and to the group vipd")
	p.item("/var/lib/vipd", "state that survives a reboot: overrides, drains in progress, the last state that was read from etcd")
	p.item("/var/log/vipd", "the folder for access logs under systemd")
	p.seeAlso("vipctl(1)", "vipd.toml(5)")
	return p
}

// settingsPage returns vipd.toml(5): the daemon's settings from the default configuration, and the
// content of docs/reference.md.
func settingsPage(version string) (*page, error) {
	defaults, err := os.ReadFile("systemd/vipd.toml")
	if err != nil {
		return nil, fmt.Errorf("reading the default configuration: %w", err)
	}
	reference, err := os.ReadFile("docs/reference.md")
	if err != nil {
		return nil, fmt.Errorf("reading the reference of the fields: %w", err)
	}
	intro, rest, _ := strings.Cut(string(reference), "\n## ")
	_, intro, _ = strings.Cut(intro, "\n")
	p := newPage("vipd.toml", 5, version, "configuration of vipd")
	p.heading("DESCRIPTION")
	p.markdown(intro)
	p.heading("SETTINGS OF THE DAEMON")
	p.settings(string(defaults))
	p.markdown("## " + rest)
	p.seeAlso("vipd(8)", "vipctl(1)", "vipctl-check(1)")
	return p, nil
}

// settings writes the settings in text, a default configuration, each with its default and its
// comment.
func (p *page) settings(text string) {
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		setting, about, _ := strings.Cut(strings.TrimPrefix(l, "#"), "  # ")
		switch {
		case strings.HasPrefix(l, "#[services."):
			return
		case strings.HasPrefix(l, "["):
			name, about, _ := strings.Cut(l, "#")
			p.subheading(strings.TrimSpace(name))
			if about != "" {
				p.paragraph(sentence(strings.TrimSpace(about)))
			}
		case strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "# ") && strings.Contains(setting, " = "):
			p.item(strings.TrimSpace(setting), sentence(strings.TrimSpace(about)))
		}
	}
}
