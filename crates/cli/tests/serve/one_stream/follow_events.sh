# Follows a subject of a stream with `curl -N`, up to a number. Prints `<sequence> <number>` per message.
#
# Whenever curl ends it is run again, with the last id that was complete: an event ends with an empty line.
url=$1 until=$2 id= number=
while [ "$number" != "$until" ]; do
  pipe=$(mktemp -u) && mkfifo "$pipe"
  curl --no-buffer --silent --globoff --header "Last-Event-ID: $id" "$url?from=all" >"$pipe" &
  curl=$!
  event= next= data=
  while IFS= read -r line; do
    case $line in
      "event: "*) event=${line#event: } ;;
      "id: "*) next=${line#id: } ;;
      "data: "*) data=${line#data: } ;;
      "")
        if [ -n "$event" ]; then
          echo "$event $data"
        elif [ -n "$data" ]; then
          number=${data##*\"data\":}
          number=${number%\}}
          echo "${next##*-} $number"
        fi
        [ -n "$next" ] && id=$next
        event= next= data=
        [ "$number" = "$until" ] && break
        ;;
    esac
  done <"$pipe"
  kill "$curl" 2>/dev/null
  wait "$curl"
  rm -f "$pipe"
  [ "$number" = "$until" ] || sleep 0.05
done
