package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
)

type bar struct {
	label string
	value float64
	text  string
}

// ownBar returns the plot's label for a layout with the usual number of services, or "" for layouts
// without a bar.
func ownBar(l layout, services int) string {
	switch l {
	case completeLayout:
		return fmt.Sprintf("iptables mode (BACKEND), %s services", group(services))
	case mapsCompleteLayout:
		return fmt.Sprintf("nftables mode, %s services", group(services))
	}
	return ""
}

// meanBar returns the plot's label for the longest list, or "" for shorter lists.
func meanBar(s sizes, services int) string {
	if services != slices.Max(s.list) {
		return ""
	}
	return fmt.Sprintf("a list of rules (BACKEND), %s services", group(services))
}

// bars returns a bar for each figure whose row has a label for the plot, from the cheapest to the
// most expensive.
func bars(rows []row, all []figure) []bar {
	var out []bar
	for _, f := range all {
		r := rows[slices.IndexFunc(rows, func(r row) bool { return r.name == f.Row })]
		if r.bar == "" {
			continue
		}
		_, decimals := r.what.unit()
		label := strings.ReplaceAll(r.bar, "BACKEND", string(f.Backend))
		if slices.ContainsFunc(out, func(b bar) bool { return b.label == label }) {
			continue // a row whose rules don't depend on the backend
		}
		out = append(out, bar{label, f.Value, fmt.Sprintf("%.*f %s", decimals, f.Value, f.Unit)})
	}
	slices.SortStableFunc(out, func(a, b bar) int { return cmp.Compare(a.value, b.value) })
	return out
}

func plotTo(path string, rows []row, all []figure) error {
	plotted := bars(rows, all)
	if len(plotted) == 0 {
		return fmt.Errorf("%s: no measured row belongs into the plot", path)
	}
	var text strings.Builder
	writePlot(&text, "Processor time of a connection's first packet", plotted)
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// The sizes of the plot are in pixels.
const (
	plotWidth  = 760
	labelWidth = 300
	valueWidth = 80
	barPitch   = 26
	barHeight  = 16
	plotTop    = 40
)

// writePlot writes the bars as an SVG image. The image has its own background, so it is also
// readable on dark pages.
func writePlot(s *strings.Builder, title string, all []bar) {
	longest := slices.MaxFunc(all, func(a, b bar) int { return cmp.Compare(a.value, b.value) }).value
	height := plotTop + len(all)*barPitch + 8
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", plotWidth, height)
	fmt.Fprintf(s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, height)
	fmt.Fprintf(s, `<text x="12" y="24" font-weight="bold">%s</text>`+"\n", escaped(title))
	for i, b := range all {
		y := plotTop + i*barPitch
		width := b.value / longest * (plotWidth - labelWidth - valueWidth)
		fmt.Fprintf(s, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, y+13, escaped(b.label))
		fmt.Fprintf(s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="#3b6ea5"/>`, labelWidth, y, width, barHeight)
		fmt.Fprintf(s, `<text x="%.1f" y="%d">%s</text>`+"\n", labelWidth+width+6, y+13, escaped(b.text))
	}
	s.WriteString("</svg>\n")
}

// escaped escapes text for XML.
func escaped(text string) string {
	var s strings.Builder
	_ = xml.EscapeText(&s, []byte(text)) // a builder does not fail
	return s.String()
}
