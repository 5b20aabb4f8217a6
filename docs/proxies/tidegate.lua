-- Asks tidegate about a request, for the `listen tidegate` of haproxy.cfg.
--
-- A request that may pass continues with txn.tidegate = "passed". One that may not gets tidegate's answer.
-- If tidegate does not answer, txn.tidegate = "down", and haproxy.cfg decides.

-- Calls `tell` with the name and value of each of these header fields that the answer has.
local function each(answer, names, tell)
    for _, name in ipairs(names) do
        local values = answer.headers[name]
        if values then
            tell(name, values[0])
        end
    end
end

core.register_action("tidegate", { "http-req" }, function(txn)
    local sent = txn.http:req_get_headers()
    local answer = core.httpclient():get({
        url = "http://tidegate/v1/auth",
        dst = "abns@tidegate",
        timeout = 2000,
        headers = {
            -- Only the method and the URI of the client's request are sent to tidegate, and method overrides. If the policy reads cookies
            -- (send all cookie lines, or a client could choose which one counts), name it here: ["cookie"] = sent["cookie"],
            -- The rules of both methods apply to a request that asks to be taken for one of another method.
            ["x-http-method-override"] = sent["x-http-method-override"],
            ["x-http-method"] = sent["x-http-method"],
            ["x-method-override"] = sent["x-method-override"],
            ["x-forwarded-method"] = { txn.sf:method() },
            ["x-forwarded-uri"] = { txn.sf:pathq() },
            ["x-forwarded-for"] = { txn.sf:src() },
        },
    })
    local status = answer and answer.status or 0
    if status == 200 then
        txn:set_var("txn.tidegate", "passed")
        local told = {
            "ratelimit", "ratelimit-policy",
            "tidegate-priority", "tidegate-flags", "tidegate-over", "tidegate-receipt",
        }
        each(answer, told, function(name, value)
            txn:set_var("txn.tidegate." .. name:gsub("%-", "_"), value)
        end)
    elseif status >= 400 and status < 500 then
        local reply = txn:reply({ status = status, body = answer.body })
        local told = { "content-type", "cache-control", "retry-after", "ratelimit", "ratelimit-policy" }
        each(answer, told, function(name, value)
            reply:add_header(name, value)
        end)
        txn:done(reply)
    else
        txn:set_var("txn.tidegate", "down")
    end
end)
