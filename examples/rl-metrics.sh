#!/bin/sh
# The figures of INFO rl as Prometheus reads them. Arguments go to redis-cli: -h HOST -p PORT.
# Run it every minute, into a file that node_exporter's textfile collector looks at:
#   rl-metrics.sh > rl.prom.new && mv rl.prom.new rl.prom
redis-cli "$@" INFO rl | tr -d '\r' | awk -F: '
    /^rl_/ {
        kind = $1 == "rl_sweeper_running" ? "gauge" : "counter"
        name = kind == "counter" ? $1 "_total" : $1
        printf "# TYPE %s %s\n%s %s\n", name, kind, name, $2
        lines++
    }
    END { exit lines ? 0 : 1 }
'
