package decode

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// str decodes text into v. v's type may limit the possible values.
func (d *decoder) str(v reflect.Value, raw any) {
	choice, limited := v.Interface().(Values)
	if _, isText := raw.(string); limited && !isText {
		d.wrongType("one of \""+strings.Join(choice.Values(), "\", \"")+"\"", raw)
		return
	}
	s, ok := d.asText(raw)
	if !ok {
		return
	}
	if limited && !slices.Contains(choice.Values(), s) {
		if len(choice.Values()) == 1 {
			d.problem("%q is not a valid value; use %q", shorten(s), choice.Values()[0])
			return
		}
		d.problem("%q is not one of %s%s", shorten(s), strings.Join(choice.Values(), ", "), meantValue(choice, s))
		return
	}
	v.SetString(s)
}

// meantValue returns the end of a message that suggests the value that the user probably meant, or
// "".
func meantValue(choice Values, text string) string {
	if s, ok := choice.(Synonyms); ok {
		if value := s.Synonyms()[strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(text))]; value != "" {
			return fmt.Sprintf("; did you mean %q?", value)
		}
	}
	return DidYouMean(text, choice.Values())
}

func (d *decoder) asText(raw any) (string, bool) {
	s, ok := raw.(string)
	if !ok {
		d.wrongType("text in quotes", raw)
	}
	return s, ok
}

// text decodes raw into target with the function parse. An error from parse becomes a problem.
func text[T any](d *decoder, target *T, raw any, parse func(string) (T, error)) {
	s, ok := d.asText(raw)
	if !ok {
		return
	}
	if v, err := parse(s); err != nil {
		d.problem("%s", err)
	} else {
		*target = v
	}
}

// unmarshal decodes raw into target. An error from UnmarshalText becomes a problem.
func (d *decoder) unmarshal(target encoding.TextUnmarshaler, raw any) {
	s, ok := d.asText(raw)
	if !ok {
		return
	}
	if err := target.UnmarshalText([]byte(s)); err != nil {
		d.problem("%s", err)
	}
}

func (d *decoder) boolean(v reflect.Value, raw any) {
	switch b := raw.(type) {
	case bool:
		v.SetBool(b)
	case string:
		if b == "true" || b == "false" {
			d.problem("needs %s without quotes", b)
			return
		}
		d.wrongType("true or false", raw)
	default:
		d.wrongType("true or false", raw)
	}
}

// readMap decodes a table with arbitrary keys. An empty table becomes nil, so equal definitions
// compare as equal. It omits entries with a problem.
func readMap[T any](d *decoder, target *map[string]T, raw any, allowed string) {
	table, ok := d.asTable(raw)
	if !ok {
		return
	}
	var out map[string]T
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if table[key] == nil {
			continue
		}
		back := d.enter(key)
		before := len(d.problems)
		var v T
		d.value(reflect.ValueOf(&v).Elem(), table[key], allowed)
		if len(d.problems) == before {
			if out == nil {
				out = make(map[string]T, len(table))
			}
			out[key] = v
		}
		d.leave(back)
	}
	*target = out
}

func (d *decoder) signed(v reflect.Value, raw any, allowed string) {
	shift := 64 - v.Type().Bits()
	if n, ok := d.integer(raw, math.MinInt64>>shift, math.MaxInt64>>shift, allowed); ok {
		v.SetInt(n)
	}
}

// unsigned decodes numbers of up to 63 bits, because TOML has signed 64-bit integers.
func (d *decoder) unsigned(v reflect.Value, raw any, allowed string) {
	maximum := uint64(math.MaxUint64) >> (64 - v.Type().Bits())
	if n, ok := d.integer(raw, 0, int64(min(maximum, math.MaxInt64)), allowed); ok {
		v.SetUint(uint64(n))
	}
}

// integer returns the whole number in raw. The number must be between minimum and maximum, or
// between the limits in the range tag allowed. Otherwise integer adds a problem and returns false.
func (d *decoder) integer(raw any, minimum, maximum int64, allowed string) (int64, bool) {
	var n int64
	var err error
	switch r := raw.(type) {
	case int64:
		n = r
	case json.Number:
		n, err = strconv.ParseInt(string(r), 10, 64)
	default:
		err = strconv.ErrSyntax
	}
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		d.notInteger(raw)
		return 0, false
	}
	low, high, _ := strings.Cut(allowed, ",")
	minimum, maximum = mustInt(low, minimum), mustInt(high, maximum)
	switch {
	case err == nil && n >= minimum && n <= maximum:
		return n, true
	case maximum == math.MaxInt64 && n < minimum:
		d.problem("%v is too small; use %d or more", raw, minimum)
	case maximum == math.MaxInt64:
		d.problem("%v is out of range", raw)
	default:
		d.problem("%v is out of range; use %d to %d", raw, minimum, maximum)
	}
	return 0, false
}

// mustInt parses one end of a range tag. If the end is empty, it returns limit.
func mustInt(tag string, limit int64) int64 {
	if tag == "" {
		return limit
	}
	n, err := strconv.ParseInt(tag, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("decode: the range tag %q is not a number", tag))
	}
	return n
}

func (d *decoder) notInteger(raw any) {
	if s, ok := raw.(string); ok {
		if _, err := strconv.ParseInt(s, 10, 64); err == nil {
			d.problem("needs a number without quotes: write %s", s)
			return
		}
	}
	d.wrongType("a whole number", raw)
}

// duration decodes text such as "2s" into target.
func (d *decoder) duration(target *time.Duration, raw any, allowed string) {
	s, ok := raw.(string)
	if !ok {
		if n, isNumber := asNumber(raw); isNumber && isDecimal(n) {
			d.problem("%s needs a unit: write \"%ss\" for seconds", n, n)
		} else {
			d.wrongType(`a duration in quotes, such as "30s"`, raw)
		}
		return
	}
	v, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		if isDecimal(s) {
			d.problem("%q needs a unit: write \"%ss\" for seconds", s, s)
			return
		}
		d.problem("%q is not a duration, such as \"500ms\", \"30s\", \"5m\" or \"3h\"", shorten(s))
		return
	}
	low, high, _ := strings.Cut(allowed, ",")
	low = cmp.Or(low, "0s")
	switch {
	case v < mustDuration(low) && v < 0 && high == "":
		d.problem("%s is negative; use %s or more", s, low)
	case v < mustDuration(low), high != "" && v > mustDuration(high):
		if high == "" {
			d.problem("%s is too short; use %s or more", s, low)
			return
		}
		d.problem("%s is out of range; use %s to %s", s, low, high)
	default:
		*target = v
	}
}

// isDecimal reports whether s has only digits and dots, like a duration without its unit.
func isDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789.") == "" }

// mustDuration parses one end of a range tag.
func mustDuration(tag string) time.Duration {
	d, err := time.ParseDuration(tag)
	if err != nil {
		panic(fmt.Sprintf("decode: the range tag %q is not a duration", tag))
	}
	return d
}

// asNumber returns the text of a number. The bool is false if raw is not a number.
func asNumber(raw any) (string, bool) {
	switch n := raw.(type) {
	case int64:
		return strconv.FormatInt(n, 10), true
	case float64:
		return strconv.FormatFloat(n, 'g', -1, 64), true
	case json.Number:
		return n.String(), true
	}
	return "", false
}

// describe describes a value in terms of TOML and JSON, for messages.
func describe(raw any) string {
	if n, ok := asNumber(raw); ok {
		return "the number " + n
	}
	switch r := raw.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("the text %q", shorten(r))
	case bool:
		return strconv.FormatBool(r)
	case time.Time:
		return "a date"
	case []any, []map[string]any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("%v", raw)
}

// shorten cuts a long value, so messages stay readable.
func shorten(s string) string {
	const maxLength = 60
	if len(s) <= maxLength {
		return s
	}
	cut := maxLength
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
