-- Posts the bodies of a file in turn, a line each, and says at the end how the answers came.
-- `wrk -t 1 … -s wrk.lua URL -- FOLDER`, where FOLDER has `bodies` and perhaps a `key`.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long us; } timeval; int gettimeofday(timeval *now, void *zone);")

local function now()
  local value = ffi.new("timeval")
  ffi.C.gettimeofday(value, nil)
  return tonumber(value.s) + tonumber(value.us) / 1e6
end

local thread
local requests, at = {}, 0
-- Read by `done`, which runs in another state of Lua.
answered, failed, last, failure = 0, 0, 0, ""

function setup(given)
  thread = given
end

function init(arguments)
  local headers = { ["Content-Type"] = "application/json" }
  local key = io.open(arguments[1] .. "/key")
  if key then
    headers["Authorization"] = "Bearer " .. key:read("*l")
    key:close()
  end
  for body in io.lines(arguments[1] .. "/bodies") do
    requests[#requests + 1] = wrk.format("POST", nil, headers, body)
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function response(status, headers, body)
  if status == 200 then
    answered, last = answered + 1, now()
  else
    failed = failed + 1
    if failure == "" then
      failure = status .. ": " .. body:sub(1, 300)
    end
  end
end

function done(summary, latency)
  local began = now() - summary.duration / 1e6
  local errors = summary.errors
  io.write(string.format(
    "\nWRK %d %d %.6f %.3f %.3f %s\n",
    thread:get("answered"),
    thread:get("failed") + errors.connect + errors.read + errors.write + errors.timeout,
    thread:get("last") - began,
    latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3,
    thread:get("failure"):gsub("%s+", " ")
  ))
end
