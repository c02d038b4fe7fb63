package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"vipd/balancer/decode"
)

// descriptions maps SECTION.FIELD to the field's description. A section is a table's path, such as
// services.ports, without the names that users choose.
type descriptions map[string]string

func (d descriptions) of(section, name string) string { return d[decode.Join(section, name)] }

// sections maps each heading in docs/reference.md that has a table of fields to the configuration
// section that contains those fields.
func sections() map[string]string {
	return map[string]string{
		"## A service": "services", "### ports": "services.ports", "### endpoints": "services.endpoints", "### Limits": "services.limits", "### Health checks": "services.health",
		"## An address": "vips", "## A group of VRRP": "ownership.vrrp",
	}
}

// readDescriptions reads the descriptions in systemd/vipd.toml and docs/reference.md. folder is the
// top of the source tree.
func readDescriptions(folder string) (descriptions, error) {
	d := descriptions{}
	settings, err := os.ReadFile(filepath.Join(folder, "systemd/vipd.toml"))
	if err != nil {
		return nil, fmt.Errorf("reading the default configuration: %w", err)
	}
	d.addSettings(string(settings))
	reference, err := os.ReadFile(filepath.Join(folder, "docs/reference.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the reference of the fields: %w", err)
	}
	d.addReference(string(reference))
	return d, nil
}

// addSettings adds the comments on the settings in text, a default configuration.
func (d descriptions) addSettings(text string) {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "#")
		code, comment, _ := strings.Cut(line, "  # ")
		switch {
		case strings.HasPrefix(code, "["):
			section, _, _ = strings.Cut(strings.Trim(code, "["), "]")
		case strings.Contains(code, " = ") && comment != "":
			name, _, _ := strings.Cut(code, " = ")
			d[decode.Join(section, strings.TrimSpace(name))] = strings.TrimSpace(comment)
		}
	}
}

// addReference adds the fields' meanings and defaults from the tables in text, the content of
// docs/reference.md.
func (d descriptions) addReference(text string) {
	section, known := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			section, known = sections()[line], sections()[line] != ""
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if !known || !strings.HasPrefix(line, "| `") || len(cells) != 3 {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(cells[0], -1) {
			d[decode.Join(section, name[1])] = plain(strings.TrimSpace(cells[2])) + " (default: " + plain(strings.TrimSpace(cells[1])) + ")"
		}
	}
}

// plain removes Markdown's links and code marks.
func plain(text string) string {
	text = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	return strings.ReplaceAll(text, "`", "")
}
