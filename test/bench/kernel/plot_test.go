package main

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestPlot plots a full plan in which each row's value in microseconds is its number. The image
// must be XML with one labelled bar for each layout and backend, shortest first.
func TestPlot(t *testing.T) {
	rows := plan(fullSizes())
	var all []figure
	for _, b := range backends() {
		for i, r := range rows {
			all = append(all, figures([]row{r}, b, samples{r.name: {float64(i + 1)}})...)
		}
	}
	path := filepath.Join(t.TempDir(), "plot.svg")
	if err := plotTo(path, rows, all); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var image struct {
		Text []string `xml:"text"`
	}
	if err := xml.Unmarshal(text, &image); err != nil {
		t.Fatalf("the plot is not XML: %v", err)
	}
	var labels []string
	for i := 1; i < len(image.Text); i += 2 { // the first text is the title
		labels = append(labels, image.Text[i])
	}
	want := []string{
		"one DNAT rule over ten endpoints", "a list of rules (legacy), 10,000 services", "a list of rules (nft), 10,000 services",
		"iptables mode (legacy), 10,000 services", "iptables mode (nft), 10,000 services", "nftables mode, 10,000 services",
	}
	if !slices.Equal(labels, want) {
		t.Errorf("labels of the plot = %q, want %q", labels, want)
	}
}
